"""Shift: how often a behaviour was shown before and after training, on the same kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from iterpo.domain import Conversation, action_indices
from iterpo.errors import BatchError
from iterpo.measure.behavior import Codes
from iterpo.measure.intervals import (
    Interval,
    mean_interval,
    paired_difference,
    proportion_interval,
)

__all__ = ["Coded", "Shift", "cohens_kappa", "shared_kernels", "shift"]


@dataclass(frozen=True, slots=True)
class Coded:
    """A conversation, and what the agent did in it."""

    conversation: Conversation
    """What was coded."""
    codes: Codes
    """The messages that show each behaviour."""


@dataclass(frozen=True, slots=True)
class Shift:
    """One behaviour at two rounds; intervals are clustered by kernel."""

    behaviour: str
    """Which one."""
    before: Interval
    """Share of conversations that show it, at the earlier round."""
    after: Interval
    """The same at the later round."""
    difference: Interval
    """after - before, paired by kernel, each kernel weighing the same; within [-1, 1]."""
    count_before: Interval
    """Times a conversation; no interval of it goes below 0."""
    count_after: Interval
    """The same at the later round."""
    per_turn_before: float | None
    """Times an agent turn, over all turns; None if there were none."""
    per_turn_after: float | None
    """The same at the later round."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {k: v.to_dict() if isinstance(v, Interval) else v for k, v in values.items()}


def shift(behaviour: str, before: Sequence[Coded], after: Sequence[Coded]) -> Shift:
    """Compare how often a behaviour is shown, on the kernels that both sides have.

    Raises:
        BatchError: if they share none.
    """
    shared = shared_kernels(*([c.conversation for c in side] for side in (before, after)))
    first, last = (
        [c for c in side if c.conversation.kernel_id in shared] for side in (before, after)
    )
    rates = [_rate(behaviour, side) for side in (first, last)]
    counts = [_count(behaviour, side) for side in (first, last)]
    shown = [[float(bool(c.codes[behaviour])) for c in side] for side in (first, last)]
    difference = paired_difference((shown[1], _kernels(last)), (shown[0], _kernels(first)))
    assert difference is not None  # noqa: S101  - shared kernels were checked above
    return Shift(
        behaviour,
        rates[0],
        rates[1],
        _within(-1.0, 1.0, _widened(difference, *rates)),
        counts[0],
        counts[1],
        _per_turn(behaviour, first),
        _per_turn(behaviour, last),
    )


def shared_kernels(before: Sequence[Conversation], after: Sequence[Conversation]) -> frozenset[str]:
    """Kernels that both sides have played.

    Raises:
        BatchError: if there is none.
    """
    mine, other = ({c.kernel_id for c in side} for side in (before, after))
    if not mine & other:
        raise BatchError(
            f"the two rounds share no kernel ({len(mine)} and {len(other)} kernels): behaviours "
            "are compared on the same scenarios; take held-out kernels, or `collect.kernels: fixed`"
        )
    return frozenset(mine & other)


def cohens_kappa(first: Sequence[bool], second: Sequence[bool]) -> float | None:
    """Agreement of two coders beyond chance: (p_o - p_e) / (1 - p_e).

    None where both give the same single answer throughout, since any two coders would agree then.

    >>> cohens_kappa([True, True, False, False], [True, False, False, False])
    0.5
    """
    n = len(first)
    if n == 0:
        return None
    agreed = sum(a == b for a, b in zip(first, second, strict=True)) / n
    yes = sum(first) / n, sum(second) / n
    chance = yes[0] * yes[1] + (1 - yes[0]) * (1 - yes[1])
    return None if chance >= 1 else (agreed - chance) / (1 - chance)


def _kernels(side: Sequence[Coded]) -> list[str]:
    return [c.conversation.kernel_id for c in side]


def _rate(behaviour: str, side: Sequence[Coded]) -> Interval:
    return proportion_interval([bool(c.codes[behaviour]) for c in side], _kernels(side))


def _count(behaviour: str, side: Sequence[Coded]) -> Interval:
    times = [float(len(c.codes[behaviour])) for c in side]
    return _within(0.0, math.inf, mean_interval(times, _kernels(side)))


def _per_turn(behaviour: str, side: Sequence[Coded]) -> float | None:
    turns = sum(len(action_indices(c.conversation.turns)) for c in side)
    return sum(len(c.codes[behaviour]) for c in side) / turns if turns else None


def _widened(difference: Interval, before: Interval, after: Interval) -> Interval:
    """Where no kernel differs from another: the ends that both rates' intervals imply (Newcombe).

    A behaviour that is never shown on either side would else have changed by exactly 0, surely.
    """
    if difference.se > 0 or difference.clusters < 2:
        return difference
    below = math.hypot(after.mean - after.low, before.high - before.mean)
    above = math.hypot(after.high - after.mean, before.mean - before.low)
    return replace(difference, low=difference.mean - below, high=difference.mean + above)


def _within(least: float, most: float, interval: Interval) -> Interval:
    """The same interval, with ends that the number can have; a single kernel's stay open."""
    if interval.clusters < 2:
        return interval
    return replace(interval, low=max(least, interval.low), high=min(most, interval.high))
