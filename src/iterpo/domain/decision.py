"""THE REDUCTION: a conversation becomes single-turn rows (s_t, a_t, G_t).

Everything after this module is single-turn. Section 3.1 of the paper: with rows (s_t, a_t, G_t),
fitting Q is ordinary reward modelling (Observation 3.5) and improving the policy is ordinary
single-turn RL with Q as the reward (Observation 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from iterpo.domain.conversation import Conversation, Message, Role, Turn
from iterpo.errors import BatchError

__all__ = [
    "Decision",
    "DiscountUnit",
    "Response",
    "Reward",
    "State",
    "action_indices",
    "decisions",
    "discounted_return",
    "discounts",
    "returns_to_go",
]

DiscountUnit = Literal["agent_turn", "message"]
"""What one power of gamma stands for: an agent action (the paper's formulas) or a message."""


@dataclass(frozen=True, slots=True)
class State:
    """s_t: what the agent saw before it spoke."""

    conversation_id: str
    """Conversation that it was logged in."""
    kernel_id: str
    """Scenario; splits are made by kernel or by conversation, never by row."""
    t: int
    """Index of the agent action, from 1 (the scripted opening is no action)."""
    messages: tuple[Message, ...]
    """Chat messages exactly as rendered for generation, reminder included."""


@dataclass(frozen=True, slots=True)
class Response:
    """a_t: an agent message; ``token_ids`` are the sampled ids (stop token included) or None."""

    text: str
    """What was said."""
    token_ids: tuple[int, ...] | None = None
    """Ids as sampled; None for text-only logs."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One row of the single-turn data set."""

    state: State
    """s_t."""
    response: Response
    """a_t."""
    ret: float
    """G_t, the Monte-Carlo return from t on."""
    turn: Turn
    """The logged turn, with its sampling evidence."""


Reward = Callable[[Sequence[State], Sequence[Response]], Sequence[float | None]]
"""Scores responses, one per state; None (or NaN) means "no score" and is left out, never a zero.
Policy evaluation returns one, policy improvement takes any."""


def returns_to_go(rewards: Sequence[float], gamma: float) -> tuple[float, ...]:
    """G_t = sum over u >= t of gamma**(u - t) * r_u, for every t (section 2.1).

    >>> [round(g, 4) for g in returns_to_go([0.0, 0.0, 1.0], 0.9)]
    [0.81, 0.9, 1.0]
    >>> returns_to_go([0.0, 0.0, 1.0], 0.0)
    (0.0, 0.0, 1.0)
    """
    out: list[float] = []
    ahead = 0.0
    for reward in reversed(rewards):
        ahead = reward + gamma * ahead
        out.append(ahead)
    return tuple(reversed(out))


def action_indices(turns: Sequence[Turn]) -> tuple[int, ...]:
    """Message indices of the agent's actions: its turns, the scripted opening left out."""
    return tuple(i for i, t in enumerate(turns) if t.role is Role.AGENT and not t.scripted)


def discounts(
    conversation: Conversation, gamma: float, unit: DiscountUnit = "agent_turn"
) -> tuple[float, ...]:
    """By agent action, gamma to the time until the next one; 0 after the last: nothing follows."""
    places = action_indices(conversation.turns)
    gaps = [1 if unit == "agent_turn" else n - m for m, n in pairwise(places)]
    return (*(gamma**gap for gap in gaps), 0.0) if places else ()


def discounted_return(conversation: Conversation, gamma: float, unit: DiscountUnit) -> float:
    """gamma**(tau - 1) * r_tau (``agent_turn``) or gamma**(index of the closing message) * r_tau.

    J(pi) is the mean of this over conversations (section 4.3). A conversation that ends before
    the agent acted (tau = 0) takes exponent 0.

    Raises:
        BatchError: if the conversation has no reward (an infrastructure failure, say).
    """
    reward = _reward(conversation)
    if unit == "message":
        return float(gamma ** max(_closing(conversation), 0) * reward)
    tau = len(action_indices(conversation.turns))
    return float(gamma ** max(tau - 1, 0) * reward)


def decisions(
    conversation: Conversation, gamma: float, unit: DiscountUnit = "agent_turn"
) -> tuple[Decision, ...]:
    """The rows (s_t, a_t, G_t) of a conversation; none where no reward exists.

    t counts agent actions from 1. With one terminal reward, G_t = gamma**(tau - t) * r_tau in
    ``agent_turn`` units and gamma**(c - m_t) * r_tau in ``message`` units, where c is the index of
    the closing message and m_t that of action t. gamma = 0 keeps the reward of the last action
    (``agent_turn``), which is ST-GRPO's target.
    """
    if not conversation.outcome.ending.scored:
        return ()
    reward = _reward(conversation)
    actions = action_indices(conversation.turns)
    if unit == "agent_turn":
        rewards = [0.0] * (len(actions) - 1) + [reward] if actions else []
        returns = returns_to_go(rewards, gamma)
    else:
        returns = tuple(gamma ** (_closing(conversation) - m) * reward for m in actions)
    rows = []
    for t, (m, ret) in enumerate(zip(actions, returns, strict=True), start=1):
        turn = conversation.turns[m]
        state = State(
            conversation.id, conversation.kernel_id, t, conversation.agent_view(m).messages()
        )
        ids = turn.sampled.token_ids if turn.sampled else None
        rows.append(Decision(state, Response(turn.text, ids), ret, turn))
    return tuple(rows)


def _reward(conversation: Conversation) -> float:
    reward = conversation.outcome.reward
    if reward is None:
        raise BatchError(
            f"conversation {conversation.id!r} ended with {conversation.outcome.ending.value!r} "
            "and has no reward; leave such conversations out and count them"
        )
    return reward


def _closing(conversation: Conversation) -> int:
    return len(conversation.turns) - 1
