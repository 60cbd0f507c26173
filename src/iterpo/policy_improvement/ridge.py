"""Moments: sums from which a ridge regression on hidden states is solved at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Line", "Moments"]


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A linear function of hidden states."""

    weight: Tensor
    """(d,), float64."""
    bias: Tensor
    """(), float64."""

    def __call__(self, states: Tensor) -> Tensor:
        """Values (n,), float64, of states (n, d)."""
        return states.double() @ self.weight + self.bias


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Sums over examples (x, y), each with a 1 beside x; those of two sets add up."""

    squares: Tensor
    """(d + 1, d + 1), float64: sum of [x 1]' [x 1]."""
    products: Tensor
    """(d + 1,), float64: sum of [x 1] y."""

    @classmethod
    def of(cls, states: Tensor, targets: Tensor) -> Moments:
        """Of states (n, d) and targets (n,)."""
        x = torch.nn.functional.pad(states.double(), (0, 1), value=1.0)
        return cls(x.T @ x, x.T @ targets.double())

    def __add__(self, other: Moments) -> Moments:
        """Both sets together."""
        return Moments(self.squares + other.squares, self.products + other.products)

    def times(self, weight: float) -> Moments:
        """Every example with this weight."""
        return Moments(self.squares * weight, self.products * weight)

    def solve(self, ridge: float) -> Line:
        """The w, b that minimise mean (w x + b - y)^2 + ridge v |w|^2.

        v is the mean variance of the entries of x, so ``ridge`` has no units. Without examples, or
        where the states are all alike, the line is the constant that fits best, or 0.
        """
        count = self.squares[-1, -1].clamp(min=torch.finfo(torch.float64).tiny)
        mean, target = self.squares[-1, :-1] / count, self.products[-1] / count
        spread = self.squares[:-1, :-1] / count - torch.outer(mean, mean)
        slope = self.products[:-1] / count - mean * target
        size = spread.diagonal().mean()
        if not size > 1e-12:
            return Line(torch.zeros_like(mean), target)
        pull = ridge * size * torch.eye(len(mean), dtype=size.dtype, device=size.device)
        weight = torch.linalg.solve(spread + pull, slope)
        return Line(weight, target - mean @ weight)
