"""GainSplit: a gain in J as three parts that sum to it: agreements, deals and lengths."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from iterpo.domain import Conversation, DiscountUnit, Ending, action_indices, discounted_return
from iterpo.measure.returns import scored

__all__ = ["GainSplit", "Worth", "split_gain", "worth"]


@dataclass(frozen=True, slots=True)
class Worth:
    """Where J comes from: J = agreement * discount * deal + (1 - agreement) * no_deal.

    For the paper's J = E[gamma^(tau-1) r_tau]. A field is None where no conversation tells it.
    """

    agreement: float
    """P(agree)."""
    discount: float | None
    """E[gamma^(tau-1) | agree]: 1 where all deals are closed at once; lengths alone decide it."""
    deal: float | None
    """E[gamma^(tau-1) r | agree] / E[gamma^(tau-1) | agree]: the mean reward of a deal, in which
    an early one weighs more; it is r where all deals are worth r."""
    no_deal: float | None
    """E[gamma^(tau-1) r | no agreement]; 0 in games where no deal is worth nothing."""

    @property
    def j(self) -> float:
        """J."""
        agreed = 0.0 if not self.agreement else (self.discount or 0.0) * (self.deal or 0.0)
        return self.agreement * agreed + (1 - self.agreement) * (self.no_deal or 0.0)

    def to_dict(self) -> dict[str, float | None]:
        """JSON values only."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class GainSplit:
    """A difference in J; the three parts sum to ``total``."""

    agreement: float
    """What comes of agreeing more often."""
    deal: float
    """What comes of better deals (and of what is earned without one)."""
    length: float
    """What comes of closing earlier."""

    @property
    def total(self) -> float:
        """J of the new policy less J of the old one."""
        return self.agreement + self.deal + self.length

    def to_dict(self) -> dict[str, float]:
        """JSON values only."""
        return {**{f.name: getattr(self, f.name) for f in fields(self)}, "total": self.total}


def worth(
    conversations: Sequence[Conversation], gamma: float, unit: DiscountUnit = "agent_turn"
) -> Worth:
    """The parts of J of a set of conversations; explored and failed ones are left out.

    Raises:
        BatchError: if no conversation has a reward.
    """
    kept = scored(conversations)
    agreed = [c for c in kept if c.outcome.ending is Ending.AGREED]
    others = [c for c in kept if c.outcome.ending is not Ending.AGREED]
    discount = _mean([_discount(c, gamma, unit) for c in agreed])
    earned = _mean([discounted_return(c, gamma, unit) for c in agreed])
    deal = earned / discount if earned is not None and discount else None
    without = _mean([discounted_return(c, gamma, unit) for c in others])
    return Worth(len(agreed) / len(kept), discount, deal, without)


def split_gain(new: Worth, old: Worth) -> GainSplit:
    """The gain from ``old`` to ``new`` by its causes: the Shapley value of the three.

    Each cause is changed from old to new in all six orders, and what J gains by that is averaged.
    So no order is preferred, and the parts sum to the gain. Two causes alone split as usual: with
    J = a d, agreement gets (a' - a) (d + d') / 2. What one side does not tell (it never agreed, so
    nothing is known of its deals) is taken from the other side: that cause has then no part.

    >>> split_gain(Worth(0.75, 1.0, 0.5, 0.0), Worth(0.25, 1.0, 0.5, 0.0)).to_dict()
    {'agreement': 0.25, 'deal': 0.0, 'length': 0.0, 'total': 0.25}
    """
    start, end = _completed(old, new), _completed(new, old)
    causes: dict[str, tuple[str, ...]] = {
        "agreement": ("agreement",),
        "deal": ("deal", "no_deal"),
        "length": ("discount",),
    }
    parts: dict[str, list[float]] = {name: [] for name in causes}
    for order in itertools.permutations(causes):
        here = start
        for name in order:
            ahead = replace(here, **{f: getattr(end, f) for f in causes[name]})
            parts[name].append(ahead.j - here.j)
            here = ahead
    return GainSplit(**{name: math.fsum(gains) / len(gains) for name, gains in parts.items()})


def _completed(one: Worth, other: Worth) -> Worth:
    own: Mapping[str, Any] = asdict(one)
    return Worth(**{k: v if v is not None else getattr(other, k) for k, v in own.items()})


def _discount(conversation: Conversation, gamma: float, unit: DiscountUnit) -> float:
    if unit == "message":
        return float(gamma ** (len(conversation.turns) - 1))
    return float(gamma ** max(len(action_indices(conversation.turns)) - 1, 0))


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
