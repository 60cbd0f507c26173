"""Stage 1: deploy pi_i, log D_i."""
