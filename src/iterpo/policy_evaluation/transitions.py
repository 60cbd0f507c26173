"""Transitions (s_t, a_t, r_t, s_{t+1}): what followed each agent action of a conversation."""

from __future__ import annotations

from dataclasses import dataclass

from iterpo.domain import (
    Conversation,
    Decision,
    DiscountUnit,
    Response,
    State,
    decisions,
    discounts,
)

__all__ = ["Transition", "transitions"]


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
    """gamma to the time until the next action; 0 after the last one."""
    following: Decision | None
    """The next action with its state s_{t+1}; None: the conversation ended."""
    explored: bool
    """Whether the action was drawn under exploration."""


def transitions(
    conversation: Conversation, gamma: float, unit: DiscountUnit = "agent_turn"
) -> tuple[Transition, ...]:
    """One for each row of ``domain.decisions``: G_t = reward + discount * G_{t+1}."""
    rows = decisions(conversation, gamma, unit)
    ahead = discounts(conversation, gamma, unit) if rows else ()
    following = (*rows[1:], None) if rows else ()
    return tuple(
        Transition(
            row.state,
            row.response,
            row.ret if then is None else 0.0,
            discount,
            then,
            row.turn.off_policy,
        )
        for row, discount, then in zip(rows, ahead, following, strict=True)
    )
