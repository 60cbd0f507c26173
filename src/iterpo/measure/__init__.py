"""Numbers about conversations; no models."""
