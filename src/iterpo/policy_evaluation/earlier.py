"""EarlierRound: another policy's log, weighed so that it tells Q of the round's policy.

G_t of a conversation of pi_j is a sample of Q of pi_j at (s_t, a_t). Weighed by the product over
u > t of pi_k(a_u | s_u) / pi_j(a_u | s_u), its mean is Q of pi_k there: the partner's part cancels.
a_t itself has no ratio, since Q takes it as given; nor have the actions before it, which decide at
which states Q is fitted and not what it is there. SARSA's target ends with a_{t+1}: so does its
product. What personas said in the round itself is weighed in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from iterpo.domain import Conversation, Decision, decisions
from iterpo.policy_evaluation.base import Estimator, QConfig
from iterpo.policy_evaluation.continuation import first_own_return, own_targets

__all__ = [
    "EarlierRound",
    "PooledRound",
    "PooledTurn",
    "Weighed",
    "log_weights",
    "turn_weights",
    "weigh_explored",
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


def log_weights(
    log_ratios: Sequence[float], estimator: Estimator = "monte_carlo"
) -> tuple[float, ...]:
    """Log weight of every action's row: 0 for the last one, after which nothing was said.

    ``monte_carlo``: sum over u > t of the log ratios; ``sarsa``: the one at t + 1; ``fitted_q``: 0.

    >>> log_weights([9.0, 0.5, -0.25])
    (0.25, -0.25, 0.0)
    >>> log_weights([9.0, 0.5, -0.25], "sarsa")
    (0.5, -0.25, 0.0)
    """
    if estimator == "fitted_q":
        return (0.0,) * len(log_ratios)
    reach = len(log_ratios) if estimator == "monte_carlo" else 1
    return tuple(math.fsum(log_ratios[t : t + reach]) for t in range(1, len(log_ratios) + 1))


def turn_weights(
    t: int, logs_of_weights: Sequence[float], config: QConfig
) -> tuple[PooledTurn, tuple[float, ...]]:
    """Weights of the rows of one round at turn t: capped, then scaled down to their worth.

    Capped at ``pool_max_weight`` and multiplied by min(1, sum w / sum w^2): together they then
    weigh no more than their effective sample size, which is how estimates of unequal precision
    are best pooled. They are never scaled up, since small weights mean that the heavy ones are
    missing. A constant within a turn does not change what Q is at its states.

    Args:
        t: Index of the agent action.
        logs_of_weights: log weight of every row (``log_weights``), at least one.
        config: ``pool_max_weight`` and ``pool_min_ess``.
    """
    logs = np.asarray(logs_of_weights, dtype=np.float64)
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
    return _joined([_weigh(r, [_rows(c, config) for c in r.conversations], config) for r in rounds])


def weigh_explored(
    conversations: Sequence[Conversation], weighable: EarlierRound | None, config: QConfig
) -> Weighed:
    """Explored rows of the round itself that ``training_rows`` leaves out, where they can be used.

    Args:
        conversations: The round's; those that are not explored play no part.
        weighable: Those with the policy's ratios, for ``off_policy: weight``; None: of the others
            come the rows that the estimator can use as they are (``own_targets``).
        config: How Q is fitted.
    """
    weighed = weighable is not None and not weighable.refused
    named = {c.id for c in weighable.conversations} if weighable is not None and weighed else set()
    scored = [c for c in conversations if c.outcome.ending.scored]
    plain = [c for c in scored if c.explored and c.id not in named]
    zeros = tuple((0.0,) * len(_rows(c, config)) for c in plain)
    usable = [_before(c, config, own_targets(c, config.gamma, config.estimator)) for c in plain]
    found = [_weigh(EarlierRound(_round(plain), tuple(plain), zeros), usable, config)]
    if weighable is not None:
        each = [_before(c, config, None) for c in weighable.conversations] if weighed else []
        found.append(_weigh(weighable, each, config))
    return _joined([w for w in found if w.decisions or (w.rounds and w.rounds[0].refused)])


def _round(conversations: Sequence[Conversation]) -> int:
    return conversations[0].round if conversations else 0


def _rows(conversation: Conversation, config: QConfig) -> tuple[Decision | None, ...]:
    return decisions(conversation, config.gamma, config.discount_unit)


def _before(
    conversation: Conversation, config: QConfig, usable: Sequence[bool] | None
) -> tuple[Decision | None, ...]:
    """Rows before the first own return, None for the others; ``usable`` None: all of them."""
    first = first_own_return(conversation, config.gamma)
    rows = decisions(conversation, config.gamma, config.discount_unit)
    return tuple(
        row if row.state.t < first and (usable is None or usable[row.state.t - 1]) else None
        for row in rows
    )


def _joined(each: Sequence[Weighed]) -> Weighed:
    return Weighed(
        tuple(d for w in each for d in w.decisions),
        tuple(x for w in each for x in w.weights),
        tuple(c for w in each for c in w.conversations),
        tuple(r for w in each for r in w.rounds),
    )


def _weigh(
    earlier: EarlierRound, rows_of_each: Sequence[Sequence[Decision | None]], config: QConfig
) -> Weighed:
    by_turn: dict[int, list[tuple[Decision, Conversation, float]]] = {}
    parts = (earlier.conversations, rows_of_each, earlier.log_ratios)
    for conversation, rows, ratios in zip(*parts, strict=True) if rows_of_each else ():
        logs = log_weights(ratios, config.estimator) if config.weighs else (0.0,) * len(rows)
        for row, log in zip(rows, logs, strict=True):
            if row is not None:
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
