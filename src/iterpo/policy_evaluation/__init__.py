"""Stage 2: fit Q^pi to logged returns (Observation 3.5)."""
