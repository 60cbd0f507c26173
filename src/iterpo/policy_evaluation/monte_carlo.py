"""training_rows: the rows whose Monte-Carlo return is the policy's own (Observation 3.5)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

from iterpo.domain import Conversation, Decision, decisions
from iterpo.errors import BatchError
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.continuation import first_own_return

__all__ = ["TrainingRows", "training_rows"]


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """The rows of a batch and where they come from."""

    decisions: tuple[Decision, ...]
    """All (s_t, a_t, G_t) rows whose return is the policy's own; none only where all was explored
    and the estimator may correct for it."""
    sources: tuple[int, ...]
    """For each row, the index of its conversation in ``conversations``."""
    conversations: tuple[Conversation, ...]
    """Conversations with a reward, but for those of which exploration left no row."""
    left_out: dict[str, int]
    """Counts of what gives no rows: endings without a reward, ``without_action``; where something
    was explored also the conversations ``explored`` throughout and all ``explored_rows``."""


def training_rows(conversations: Sequence[Conversation], config: QConfig) -> TrainingRows:
    """The rows to fit on, after refusing batches that nothing can be learned from.

    Raises:
        BatchError: see ``fit_q``.
    """
    if not conversations:
        raise BatchError("no conversations were given; collect some, or check the log's filter")
    left_out = Counter(c.outcome.ending.value for c in conversations if not c.outcome.ending.scored)
    scored = tuple(c for c in conversations if c.outcome.ending.scored)
    if not scored:
        raise BatchError(
            f"none of the {len(conversations)} conversations has a reward "
            f"({', '.join(f'{n} {e}' for e, n in sorted(left_out.items()))}); failed conversations "
            "are never counted as zero: collect again once the cause is gone"
        )
    _check_rewards(scored)
    if config.off_policy == "refuse":
        _refuse_explored(scored)
    found = [decisions(c, config.gamma, config.discount_unit) for c in scored]
    left_out["without_action"] = sum(not rows for rows in found)
    if any(c.explored for c in scored):
        scored, found = _drop_explored(scored, found, config, left_out)
    flat = tuple(d for rows in found for d in rows)
    if not flat and left_out["explored_rows"]:
        return TrainingRows((), (), scored, dict(left_out))
    if not flat:
        raise BatchError(
            f"the {len(scored)} scored conversations hold no agent action (the scripted opening is "
            "none): the partners ended them at once, so there is nothing to learn from"
        )
    values = {d.ret for d in flat}
    if len(values) == 1:
        raise BatchError(
            f"all {len(flat)} returns are {values.pop():g}: with one outcome only there is nothing "
            "to learn. Collect more conversations, sample at a higher temperature, or start from a "
            "policy that sometimes succeeds and sometimes fails."
        )
    sources = tuple(i for i, rows in enumerate(found) for _ in rows)
    return TrainingRows(flat, sources, scored, dict(left_out))


def _check_rewards(conversations: Sequence[Conversation]) -> None:
    for c in conversations:
        if c.outcome.reward is None or not math.isfinite(c.outcome.reward):
            raise BatchError(
                f"conversation {c.id!r} ended with {c.outcome.ending.value!r} but its reward is "
                f"{c.outcome.reward!r}; a finite number is needed: re-score the log"
            )


def _refuse_explored(conversations: Sequence[Conversation]) -> None:
    explored = [c for c in conversations if c.explored]
    if explored:
        raise BatchError(
            f"{len(explored)} of {len(conversations)} conversations were explored off-policy "
            f"(first: {explored[0].id!r}). Their Monte-Carlo returns are those of the exploring "
            "policy, not of the deployed one. Set off_policy to drop (q.off_policy in a plan) to "
            "leave out the rows that this concerns, to weight to correct for it, or collect "
            "without exploration."
        )


def _drop_explored(
    scored: tuple[Conversation, ...],
    found: list[tuple[Decision, ...]],
    config: QConfig,
    left_out: Counter[str],
) -> tuple[tuple[Conversation, ...], list[tuple[Decision, ...]]]:
    own = [
        rows[first_own_return(c, config.gamma) - 1 :] for c, rows in zip(scored, found, strict=True)
    ]
    gone = [bool(rows) and not kept for rows, kept in zip(found, own, strict=True)]
    left_out["explored"] = sum(gone)
    left_out["explored_rows"] = sum(map(len, found)) - sum(map(len, own))
    corrects = config.estimator != "monte_carlo" or config.off_policy == "weight"
    if left_out["explored_rows"] and not any(own) and not corrects:
        raise BatchError(
            f"all {left_out['explored_rows']} agent turns were explored or came before one that "
            "was, so no return is the policy's own: explore a smaller share, or with scope action, "
            "or set estimator to fitted_q (q.estimator in a plan)"
        )
    # Conversations without a row would take places in the held-out split.
    keep = [not out for out in gone]
    return tuple(compress(scored, keep)), list(compress(own, keep))
