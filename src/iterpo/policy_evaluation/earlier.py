"""EarlierRound: another policy's log, weighed so that it tells Q of the round's policy.

G_t of a conversation of pi_j is a sample of Q of pi_j at (s_t, a_t). Weighed by the product over
u > t of pi_k(a_u | s_u) / pi_j(a_u | s_u), its mean is Q of pi_k there: the partner's part cancels.
a_t itself has no ratio, since Q takes it as given; nor have the actions before it, which decide at
which states Q is fitted and not what it is there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from iterpo.domain import Conversation, Decision, decisions
from iterpo.policy_evaluation.base import QConfig

__all__ = [
    "EarlierRound",
    "PooledRound",
    "PooledTurn",
    "Weighed",
    "future_log_weights",
    "turn_weights",
    "weigh_rounds",
]

_LEAST = -300.0  # squares of smaller weights are 0, and nothing can be divided by their sum


@dataclass(frozen=True, slots=True)
class EarlierRound:
    """The log of another policy, with what the round's policy finds of it."""

    round: int
    """Round that logged it."""
    conversations: tuple[Conversation, ...] = ()
    """Scored conversations with an agent action, all or none of those that the policy held by
    itself: to choose among them by what came later would bend the returns."""
    log_ratios: tuple[tuple[float, ...], ...] = ()
    """For each, log pi_k(a_t | s_t) - log pi_j(a_t | s_t) of every agent action, in nats."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Conversations that were left out, by reason."""
    refused: str = ""
    """Why nothing of it can be weighed; empty if it can."""


@dataclass(frozen=True, slots=True)
class PooledTurn:
    """The rows of one round at one agent turn."""

    t: int
    """Index of the agent action, from 1."""
    rows: int
    """Rows."""
    ess: float
    """Effective sample size (sum w)^2 / sum w^2 of their weights before the cap."""
    capped: int
    """Rows whose weight reached ``pool_max_weight``."""
    mean_weight: float
    """Mean weight under the cap; without a cap it is 1 in expectation. Far below: what the new
    policy says was hardly ever said."""
    used: bool
    """Whether the effective sample was large enough."""


@dataclass(frozen=True, slots=True)
class PooledRound:
    """What an earlier round added to the fit of Q."""

    round: int
    """Round that logged it."""
    conversations: int
    """Conversations that were weighed."""
    rows: int
    """Rows that were added."""
    mass: float
    """Sum of their weights: that many rows of the round's own they are worth together."""
    left_out: Mapping[str, int]
    """Conversations that were left out, and ``rows_low_ess``, by reason."""
    turns: tuple[PooledTurn, ...]
    """Weights by turn index."""
    refused: str = ""
    """Why nothing of this round was used; empty if it was weighed."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """Rows of earlier rounds, ready to be fitted on."""

    decisions: tuple[Decision, ...] = ()
    """The rows."""
    weights: tuple[float, ...] = ()
    """One for each; a row of the round itself has 1."""
    conversations: tuple[Conversation, ...] = ()
    """For each row, where it comes from."""
    rounds: tuple[PooledRound, ...] = ()
    """What became of each round."""


def future_log_weights(log_ratios: Sequence[float]) -> tuple[float, ...]:
    """Sum over u > t of the log ratios, for every action t; 0 for the last one.

    >>> future_log_weights([9.0, 0.5, -0.25])
    (0.25, -0.25, 0.0)
    """
    return tuple(math.fsum(log_ratios[t:]) for t in range(1, len(log_ratios) + 1))


def turn_weights(
    t: int, log_weights: Sequence[float], config: QConfig
) -> tuple[PooledTurn, tuple[float, ...]]:
    """Weights of the rows of one round at turn t: capped, then scaled down to their worth.

    Capped at ``pool_max_weight`` and multiplied by min(1, sum w / sum w^2): together they then
    weigh no more than their effective sample size, which is how estimates of unequal precision
    are best pooled. They are never scaled up, since small weights mean that the heavy ones are
    missing. A constant within a turn does not change what Q is at its states.

    Args:
        t: Index of the agent action.
        log_weights: log weight of every row (``future_log_weights``), at least one.
        config: ``pool_max_weight`` and ``pool_min_ess``.
    """
    logs = np.asarray(log_weights, dtype=np.float64)
    relative = np.exp(np.maximum(logs - logs.max(), _LEAST))
    ess = float(relative.sum() ** 2 / np.square(relative).sum())
    weights: NDArray[np.float64] = np.exp(np.clip(logs, _LEAST, math.log(config.pool_max_weight)))
    capped = int((logs >= math.log(config.pool_max_weight)).sum())
    used = ess >= config.pool_min_ess * len(logs)
    found = PooledTurn(t, len(logs), ess, capped, float(weights.mean()), used)
    scale = min(1.0, float(weights.sum() / np.square(weights).sum()))
    return found, tuple((weights * scale).tolist())


def weigh_rounds(rounds: Sequence[EarlierRound], config: QConfig) -> Weighed:
    """The rows of earlier rounds with their weights; at gamma 0 every weight is 1.

    At gamma 0 nothing that is said after a_t enters G_t, so any policy's returns will do.
    """
    each = [_weigh(r, config) for r in rounds]
    return Weighed(
        tuple(d for w in each for d in w.decisions),
        tuple(x for w in each for x in w.weights),
        tuple(c for w in each for c in w.conversations),
        tuple(r for w in each for r in w.rounds),
    )


def _weigh(earlier: EarlierRound, config: QConfig) -> Weighed:
    by_turn: dict[int, list[tuple[Decision, Conversation, float]]] = {}
    for conversation, ratios in zip(earlier.conversations, earlier.log_ratios, strict=True):
        rows = decisions(conversation, config.gamma, config.discount_unit)
        logs = future_log_weights(ratios) if config.gamma > 0 else (0.0,) * len(rows)
        for row, log in zip(rows, logs, strict=True):
            by_turn.setdefault(row.state.t, []).append((row, conversation, log))
    turns, kept = [], []
    for t in sorted(by_turn):
        found, weights = turn_weights(t, [log for _, _, log in by_turn[t]], config)
        turns.append(found)
        if found.used:
            kept += [(d, w, c) for (d, c, _), w in zip(by_turn[t], weights, strict=True)]
    low = sum(turn.rows for turn in turns if not turn.used)
    report = PooledRound(
        earlier.round,
        len(earlier.conversations),
        len(kept),
        math.fsum(w for _, w, _ in kept),
        {**earlier.left_out, "rows_low_ess": low},
        tuple(turns),
        earlier.refused,
    )
    return Weighed(
        tuple(d for d, _, _ in kept),
        tuple(w for _, w, _ in kept),
        tuple(c for _, _, c in kept),
        (report,),
    )
