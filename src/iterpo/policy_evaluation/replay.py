"""Replay: transitions (s, a, r, s') of all rounds so far, and the sample that a round learns from.

With conversations of older policies a regression on returns would learn the values of those; one
step of a Bellman backup does not depend on who spoke next (ArCHer; IterPO paper, appendix E.7).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from iterpo.domain import (
    Conversation,
    DiscountUnit,
    Response,
    State,
    action_indices,
    decisions,
    derive,
)
from iterpo.errors import BatchError

__all__ = ["Transition", "replay", "transitions"]


@dataclass(frozen=True, slots=True)
class Transition:
    """One agent action and what followed it."""

    state: State
    """s_t."""
    response: Response
    """a_t."""
    reward: float
    """r_t: 0 but for the last action, whose reward is discounted to it as in ``decisions``."""
    discount: float
    """What the value of ``following`` is worth at t: one or more powers of gamma."""
    following: State | None
    """s_{t+1}; None: the conversation ended (done)."""
    explored: bool
    """Whether the action was drawn under exploration."""


def transitions(
    conversation: Conversation, gamma: float, unit: DiscountUnit = "agent_turn"
) -> tuple[Transition, ...]:
    """The transitions of a conversation; none where no reward exists.

    Rewards and discounts are such that summing them up gives the returns of ``decisions``.
    """
    rows = decisions(conversation, gamma, unit)
    places = action_indices(conversation.turns)
    out = []
    for t, row in enumerate(rows):
        last = t == len(rows) - 1
        apart = 1 if last or unit == "agent_turn" else places[t + 1] - places[t]
        out.append(
            Transition(
                row.state,
                row.response,
                row.ret if last else 0.0,
                gamma**apart,
                None if last else rows[t + 1].state,
                row.turn.off_policy,
            )
        )
    return tuple(out)


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
