"""Roll-back: when the collected J says that an update was a mistake, start again from the best.

A policy is judged by all that it was deployed on. The log of a policy that lost is no sample of Q
of the one that is gone back to (its returns are those of other later actions), so it is not used:
the update has the best policy's own logs, other random draws and a smaller step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from iterpo.domain import Conversation, DiscountUnit, discounted_return
from iterpo.domain.rules import refuse, within
from iterpo.measure.intervals import Interval, mean_interval, paired_difference, t_quantile
from iterpo.measure.returns import scored

__all__ = ["Fall", "RollBackPlan", "fall"]

Sample = tuple[list[float], list[str]]
"""Returns and their kernels."""


@dataclass(frozen=True, slots=True)
class RollBackPlan:
    """When an update starts from an earlier policy than the one deployed last."""

    enabled: bool = False
    """Whether it ever does."""
    margin: float = 0.0
    """How far the collected J must surely lie below that of the best earlier policy."""
    confidence: float = 0.95
    """How surely: one-sided, paired by kernel where the policies met the same ones."""
    step_factor: float = 0.5
    """Each further update from the same policy (after a roll-back, or after a verdict discarded
    the first) takes a step as much smaller: the learning rate is multiplied by this."""

    def __post_init__(self) -> None:
        """Refuse impossible values.

        Raises:
            ConfigError: with one line for each mistake.
        """
        refuse(
            self,
            margin=within("[0, inf)"),
            confidence=within("(0.5, 1)"),
            step_factor=within("(0, 1]"),
        )


@dataclass(frozen=True, slots=True)
class Fall:
    """How the policy deployed last compares with the best one before it."""

    best: int
    """Place of the best earlier policy among those compared."""
    difference: Interval
    """Its J taken from that of the latest; the upper end is the one-sided bound."""
    rolls_back: bool
    """Whether the upper end lies below minus the margin."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        told = self.difference.to_dict()
        return {"best_policy": self.best, "difference": told, "rolls_back": self.rolls_back}


def fall(
    logs: Sequence[Sequence[Conversation]],
    plan: RollBackPlan,
    gamma: float,
    unit: DiscountUnit,
) -> Fall | None:
    """Compare the latest policy with the best earlier one; None where there is only one.

    Args:
        logs: What each policy was deployed on, in order of its first deployment, the latest last.
        plan: Margin and confidence.
        gamma: Discount factor of J.
        unit: What a power of it stands for.

    Raises:
        BatchError: if a log has no conversation with a reward that was not explored.
    """
    if len(logs) < 2:
        return None
    samples = [_returns(log, gamma, unit) for log in logs]
    means = [math.fsum(values) / len(values) for values, _ in samples]
    best = max(range(len(logs) - 1), key=lambda k: means[k])  # ties go to the earlier policy
    two_sided = 2 * plan.confidence - 1
    difference = paired_difference(samples[-1], samples[best], two_sided)
    if difference is None:
        difference = _unpaired(samples[-1], samples[best], two_sided)
    return Fall(best, difference, difference.high < -plan.margin)


def _returns(log: Sequence[Conversation], gamma: float, unit: DiscountUnit) -> Sample:
    kept = scored(log)
    return [discounted_return(c, gamma, unit) for c in kept], [c.kernel_id for c in kept]


def _unpaired(new: Sample, old: Sample, confidence: float) -> Interval:
    """Fresh kernels in every round: the errors of both means add up."""
    a, b = mean_interval(*new), mean_interval(*old)
    clusters = min(a.clusters, b.clusters)
    mean, se = a.mean - b.mean, math.hypot(a.se, b.se)
    half = t_quantile(0.5 + confidence / 2, clusters - 1) * se if clusters > 1 else math.inf
    return Interval(mean, se, mean - half, mean + half, a.n + b.n, a.clusters + b.clusters)
