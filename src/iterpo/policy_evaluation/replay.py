"""Replay: transitions (s, a, r, s') of all rounds so far, and the sample that a round learns from.

With conversations of older policies a regression on returns would learn the values of those; one
step of a Bellman backup does not depend on who spoke next (ArCHer; IterPO paper, appendix E.7).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from iterpo.domain import Conversation, DiscountUnit, derive
from iterpo.errors import BatchError
from iterpo.policy_evaluation.transitions import Transition, transitions

__all__ = ["replay"]


def replay(
    conversations: Sequence[Conversation],
    gamma: float,
    unit: DiscountUnit,
    *,
    capacity: int,
    seed: int,
) -> tuple[Transition, ...]:
    """One round's worth of transitions, drawn from the latest ``capacity`` ones without repetition.

    One round's worth is as many as the latest round logged, so the first round learns from all of
    its own. They come in the order of the buffer.

    Args:
        conversations: All that may be learned from; ordered by their round, the latest is last.
        gamma: Discount factor.
        unit: What one power of it stands for.
        capacity: Size of the buffer; the oldest transitions leave it first.
        seed: Of the draw.

    Raises:
        BatchError: if nothing can be learned: no transition, or the same reward after each.
    """
    ordered = sorted(conversations, key=lambda c: c.round)
    by_round = [(c.round, transitions(c, gamma, unit)) for c in ordered]
    flat = [row for _, rows in by_round for row in rows]
    if not flat:
        raise BatchError(
            f"the {len(ordered)} conversations hold no agent action with a reward to follow, so "
            "there is nothing to learn from"
        )
    buffer = flat[-capacity:]
    fresh = sum(len(rows) for i, rows in by_round if i == ordered[-1].round)
    drawn = random.Random(derive(seed, "replay"))
    chosen = sorted(drawn.sample(range(len(buffer)), min(fresh or len(buffer), len(buffer))))
    sample = tuple(buffer[i] for i in chosen)
    rewards = {row.reward for row in sample}
    if len(rewards) == 1:
        raise BatchError(
            f"all {len(sample)} transitions are followed by the reward {rewards.pop():g}: with one "
            "outcome only there is nothing to learn. Collect more conversations, or start from a "
            "policy that sometimes succeeds and sometimes fails."
        )
    return sample
