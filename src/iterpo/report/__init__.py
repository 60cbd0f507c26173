"""Stage 5: tables, plots and one self-contained page of what runs have found; never trains."""
