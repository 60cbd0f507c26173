"""Candidates drawn at several temperatures, and the weights that keep the gradient the policy's.

Each candidate of a group gets a temperature of its own, drawn uniformly from the given ones, so
every candidate is a draw from the mixture b(y) = mean_k pi_k(y), where pi_k samples token by token
at temperature k. Its advantage is weighted by w = pi(y) / b(y), pi being the policy at its own
temperature: E_b[w A grad log pi] = E_pi[A grad log pi], whatever the group's mean that is
subtracted, for E_b[w grad log pi] = 0. The temperatures are drawn independently, not dealt out in
turn, since a mean over candidates of unlike distributions would be correlated with them. Where the
policy's own temperature is a share p of those given, b >= p pi, so w <= 1 / p: bounded without
being truncated, hence without bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from iterpo.domain import derive

__all__ = ["log_mixture_weights", "temperatures_of", "token_logps"]


def temperatures_of(
    temperatures: Sequence[float], names: Sequence[str], group_size: int, batch: int, seed: int
) -> list[float]:
    """A temperature for each of ``group_size`` candidates of each named state, in order."""
    count = len(temperatures)
    return [
        temperatures[derive(seed, "improve", "temperature", batch, name, n) % count]
        for name in names
        for n in range(group_size)
    ]


def token_logps(
    logits: torch.Tensor, ids: torch.Tensor, temperatures: Sequence[float]
) -> torch.Tensor:
    """Log-probs (K, …) of the drawn tokens (…) at each temperature, from logits (…, V)."""
    found = [
        torch.log_softmax(logits / t, -1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        for t in temperatures
    ]
    return torch.stack(found)


def log_mixture_weights(
    logps: torch.Tensor, mask: torch.Tensor, temperatures: Sequence[float], own: float
) -> torch.Tensor:
    """The log of w (B,): a response's log-probability at ``own`` less that under the mixture.

    Args:
        logps: (K, B, C) log-probs of its tokens at each temperature.
        mask: (B, C), 1 on the response's tokens.
        temperatures: The K temperatures of the mixture; a repeated one weighs more.
        own: The policy's temperature, one of them.

    >>> p = torch.tensor([[[0.5]], [[0.25]]]).log()
    >>> log_mixture_weights(p, torch.ones(1, 1), (1.0, 2.0), 1.0).exp()
    tensor([1.3333], dtype=torch.float64)
    """
    whole = (logps.double() * mask).sum(-1)  # (K, B)
    mixture = torch.logsumexp(whole, 0) - math.log(len(temperatures))
    return whole[list(temperatures).index(own)] - mixture
