"""One file = one row of the paper's Table 1."""

from iterpo.methods.base import REGISTRY, Method, RoundBatch, Workspace, make, names

__all__ = ["REGISTRY", "Method", "RoundBatch", "Workspace", "make", "names"]
