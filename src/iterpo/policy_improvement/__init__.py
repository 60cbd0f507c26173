"""Stage 3: optimise any reward (Observation 3.1)."""
