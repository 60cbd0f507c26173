"""measure: J, agreement, rewards, turns and regret of a set of conversations (section 4.3)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from iterpo.domain import (
    Conversation,
    DiscountUnit,
    Ending,
    action_indices,
    discounted_return,
)
from iterpo.errors import BatchError
from iterpo.measure.intervals import Interval, mean_interval, proportion_interval

__all__ = ["Measurement", "ResultRecord", "measure", "result_record", "scored"]

_OUTCOMES = {Ending.AGREED: "deal", Ending.REFUSED: "no_deal", Ending.TURN_LIMIT: "limit"}


@dataclass(frozen=True, slots=True)
class ResultRecord:
    """One conversation as a row of a table."""

    conversation_id: str
    """Which conversation."""
    kernel_id: str
    """Which scenario."""
    outcome: str
    """``deal``, ``no_deal`` or ``limit``; else the name of the ending, which has no reward."""
    terms: Mapping[str, float | int | str]
    """Agreed terms."""
    closed_by: str
    """What closed the deal."""
    closing_message: int
    """Index of the last message (opening = 0)."""
    n_messages: int
    """Messages, the opening included."""
    n_agent_actions: int
    """tau: agent messages, the scripted opening left out."""
    reward: float | None
    """Undiscounted terminal reward r_tau; None where none exists."""
    return_agent_turn: float | None
    """gamma^(tau - 1) r_tau."""
    return_message: float | None
    """gamma^(index of the closing message) r_tau."""
    flags: tuple[str, ...] = ()
    """Per-game remarks."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {**asdict(self), "terms": dict(self.terms), "flags": list(self.flags)}


@dataclass(frozen=True, slots=True)
class Measurement:
    """Numbers about a set of conversations, with standard errors clustered by kernel."""

    gamma: float
    """Discount factor of J."""
    conversations: int
    """All conversations given."""
    n_scored: int
    """Those with a reward and without exploration; all intervals are over these."""
    n_kernels: int
    """Scenarios among the scored."""
    endings: Mapping[str, int]
    """Conversations by ending, all of them."""
    left_out: int
    """Conversations without a reward (infrastructure failures and such): never counted as 0."""
    J_agent_turn: Interval
    """J = E[gamma^(tau - 1) r_tau], the paper's formula."""
    J_message: Interval
    """J with one power of gamma per message."""
    agreement: Interval
    """Share that ended in agreement."""
    reward: Interval
    """Undiscounted terminal reward, no deal counting as its 0."""
    messages: Interval
    """Messages per conversation, the opening included."""
    turns: Interval
    """Agent turns tau per conversation, the opening left out."""
    reward_given_agreement: Interval | None = None
    """Undiscounted reward of the agreed conversations; None if there are none."""
    j_star_agent_turn: Interval | None = None
    """Best attainable return where it is known for this gamma (scripted partners), else None."""
    j_star_message: Interval | None = None
    """The same per message."""
    regret_agent_turn: Interval | None = None
    """J* - J over the conversations where J* is known."""
    regret_message: Interval | None = None
    """The same per message."""
    flags: Mapping[str, int] = field(default_factory=dict)
    """Per-game remarks of the scored conversations, counted."""
    explored: int = 0
    """Conversations with a reward that were drawn under exploration: what they returned is the
    exploring policy's, so they are in no mean."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        out: dict[str, Any] = {}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, Interval):
                value = value.to_dict()
            out[name] = dict(value) if isinstance(value, Mapping) else value
        return out


def result_record(conversation: Conversation, gamma: float) -> ResultRecord:
    """The result record of a conversation; rewards and returns are None where none exists."""
    outcome = conversation.outcome
    has_reward = outcome.ending.scored
    n_messages = len(conversation.turns)
    closing = outcome.closing_message if outcome.closing_message >= 0 else n_messages - 1
    return ResultRecord(
        conversation_id=conversation.id,
        kernel_id=conversation.kernel_id,
        outcome=_OUTCOMES.get(outcome.ending, outcome.ending.value),
        terms=outcome.terms,
        closed_by=outcome.closed_by,
        closing_message=closing,
        n_messages=n_messages,
        n_agent_actions=len(action_indices(conversation.turns)),
        reward=outcome.reward if has_reward else None,
        return_agent_turn=_return(conversation, gamma, "agent_turn") if has_reward else None,
        return_message=_return(conversation, gamma, "message") if has_reward else None,
        flags=outcome.flags,
    )


def measure(conversations: Sequence[Conversation], gamma: float = 0.9) -> Measurement:
    """Estimate J and its companions.

    Conversations without a reward are left out and counted, never taken as zero. So are those
    that were explored, whether or not they got as far as an explored turn: leaving out only
    those that did would keep the short ones.

    Raises:
        BatchError: if no conversation has a reward, or all of those were explored.
    """
    kept = scored(conversations)
    rewarded = sum(c.outcome.ending.scored for c in conversations)
    agreed = [c for c in kept if c.outcome.ending is Ending.AGREED]
    kernels = [c.kernel_id for c in kept]

    def mean(value: Callable[[Conversation], float], over: Sequence[Conversation]) -> Interval:
        return mean_interval([value(c) for c in over], [c.kernel_id for c in over])

    def discounted(unit: DiscountUnit) -> Interval:
        return mean(lambda c: _return(c, gamma, unit), kept)

    return Measurement(
        gamma=gamma,
        conversations=len(conversations),
        n_scored=len(kept),
        n_kernels=len(set(kernels)),
        endings=dict(sorted(Counter(c.outcome.ending.value for c in conversations).items())),
        left_out=len(conversations) - rewarded,
        J_agent_turn=discounted("agent_turn"),
        J_message=discounted("message"),
        agreement=proportion_interval([c.outcome.ending is Ending.AGREED for c in kept], kernels),
        reward=mean(_reward, kept),
        messages=mean(lambda c: len(c.turns), kept),
        turns=mean(lambda c: len(action_indices(c.turns)), kept),
        reward_given_agreement=mean(_reward, agreed) if agreed else None,
        **_against_best(kept, gamma, "agent_turn"),
        **_against_best(kept, gamma, "message"),
        flags=dict(sorted(Counter(f for c in kept for f in c.outcome.flags).items())),
        explored=rewarded - len(kept),
    )


def scored(conversations: Sequence[Conversation]) -> tuple[Conversation, ...]:
    """The conversations that have a reward and are the policy's own, not explored.

    Raises:
        BatchError: if there is none.
    """
    rewarded = [c for c in conversations if c.outcome.ending.scored]
    kept = tuple(c for c in rewarded if not c.explored)
    if rewarded and not kept:
        raise BatchError(
            f"all {len(rewarded)} conversations with a reward were explored, so they say nothing "
            "about J of the policy itself: explore a smaller share, or collect some without"
        )
    if not kept:
        endings = Counter(c.outcome.ending.value for c in conversations)
        found = ", ".join(f"{n} {e}" for e, n in sorted(endings.items())) or "none was given"
        cause = next((c.outcome.detail for c in conversations if c.outcome.detail), "")
        raise BatchError(
            f"no conversation has a reward, so nothing can be measured ({found}); failures are "
            "never counted as zero: collect again once their cause is gone"
            + (f". The first one: {cause}" if cause else "")
        )
    return kept


def _against_best(
    conversations: Sequence[Conversation], gamma: float, unit: DiscountUnit
) -> dict[str, Any]:
    # At another gamma than the one that it was computed for, J* says nothing about J.
    known = [
        c
        for c in conversations
        if unit in c.j_star and math.isclose(c.j_star.get("gamma", gamma), gamma)
    ]
    if not known:
        return {}
    kernels = [c.kernel_id for c in known]
    best = [c.j_star[unit] for c in known]
    regret = [b - _return(c, gamma, unit) for b, c in zip(best, known, strict=True)]
    return {
        f"j_star_{unit}": mean_interval(best, kernels),
        f"regret_{unit}": mean_interval(regret, kernels),
    }


def _reward(conversation: Conversation) -> float:
    reward = conversation.outcome.reward
    if reward is None or not math.isfinite(reward):
        raise BatchError(
            f"conversation {conversation.id!r} ended with {conversation.outcome.ending.value!r} "
            f"but its reward is {reward!r}; a finite number is needed: re-score the log"
        )
    return reward


def _return(conversation: Conversation, gamma: float, unit: DiscountUnit) -> float:
    _reward(conversation)
    return discounted_return(conversation, gamma, unit)
