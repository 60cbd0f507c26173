"""One file = one row of the paper's Table 1."""
