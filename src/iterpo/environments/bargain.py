"""How a scripted partner bargains: its private draw, its falling aspiration and the bound J*.

The decision procedure itself is in ``agents.scripted``; a game fills in what terms are worth.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["PrivateDraw", "aspirations", "ceil", "j_star", "private_draw"]

_BETAS = (0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class PrivateDraw:
    """What a scripted partner keeps to itself, the same in all conversations of a kernel."""

    u: float
    """In [0, 1); sets the reservation value, per game."""
    beta: float
    """Shape of its concessions: 0.5 late, 1 even, 2 early."""


@lru_cache(maxsize=65536)
def private_draw(partner_seed: int, code: int, kernel_id: str) -> PrivateDraw:
    """The partner's private draw for one kernel.

    Args:
        partner_seed: Names the population of partners.
        code: Number of the environment.
        kernel_id: Scenario.
    """
    import numpy as np  # importing an environment stays light

    g = np.random.default_rng([partner_seed, code, zlib.crc32(kernel_id.encode())])
    u = float(g.random())
    return PrivateDraw(u, _BETAS[int(g.integers(3))])


def aspirations(rho: float, top: float, beta: float, n_turns: int) -> tuple[float, ...]:
    """alpha_k = rho + (top - rho)(1 - F(k)), F(k) = ((k-1)/(K-1))**(1/beta), for k = 1..K.

    >>> aspirations(4, 9, 1.0, 5)
    (9.0, 7.75, 6.5, 5.25, 4.0)
    """
    done = [((k / (n_turns - 1)) ** (1 / beta) if n_turns > 1 else 1.0) for k in range(n_turns)]
    return tuple(rho + (top - rho) * (1 - f) for f in done)


def ceil(value: float) -> int:
    """Smallest integer not below ``value``, forgiving a rounding error.

    >>> ceil(650.0000000001), ceil(650.01)
    (650, 651)
    """
    return math.ceil(value - 1e-9)


def j_star(gamma: float, reach: Sequence[float], boxing: Iterable[int]) -> dict[str, float]:
    """Best attainable return against the scripted partner, by discount unit.

    An offer at agent action t is answered at partner turn t + 1, so that it can be worth
    ``reach[t]`` = M(alpha_{t+1}); what the partner boxes at turn t can be worth M(alpha_t).

    Args:
        gamma: Discount per unit.
        reach: M(alpha_k), the best agent reward among terms worth alpha_k to the partner, k = 1..K.
        boxing: Partner turns, from 1, at which the partner boxes an offer of its own.

    >>> best = j_star(0.9, [1.6, 1.6, 1.6, 2.0, 2.0], range(2, 6))
    >>> round(best["agent_turn"], 4), round(best["message"], 4)
    (1.62, 1.1664)
    """
    offers = range(1, len(reach))
    own = [(gamma ** (t - 1) * reach[t], gamma ** (2 * t + 1) * reach[t]) for t in offers]
    taken = [(gamma ** (t - 1) * reach[t - 1], gamma ** (2 * t) * reach[t - 1]) for t in boxing]
    both = own + taken or [(0.0, 0.0)]
    return {"agent_turn": max(a for a, _ in both), "message": max(m for _, m in both)}
