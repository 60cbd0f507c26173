"""Weights: the only layer that knows tensors."""
