"""One seat of a game as a teacher sees it: its own points, the public rules, the transcript.

The scripted partner's reservation value, its aspirations and the other side's points stay out of
reach: what a teacher does can't tell them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from iterpo.agents.scripted import Bargaining
from iterpo.domain import Role, Scenario, Turn
from iterpo.environments.base import Environment
from iterpo.environments.casino import ITEMS as PACKAGES

__all__ = ["Position", "Terms", "position"]

Terms = Any
"""Dollars in cents, or a number per item or issue; as the game's bargain has them."""

_WISH = (0.15, 0.4, 0.6, 0.75, 0.8, 0.85, 0.9)
"""How often a unit of an item of 0, 1, 2, … points is asked for."""


class _Table(Protocol):
    """What a game's bargain tells both sides."""

    rejection: str

    def standing(self, turns: Sequence[Turn], role: Role) -> Terms | None: ...

    def box(self, terms: Terms, role: Role) -> str: ...

    def acceptance(self, terms: Terms, role: Role) -> str: ...

    def reward(self, terms: Terms) -> float: ...

    def worth(self, terms: Terms) -> float: ...


@dataclass(frozen=True, slots=True)
class Position:
    """What one side may know and do."""

    scenario: Scenario
    """Kernel; only the facts of ``role`` and the public ones are read."""
    role: Role
    """Whose seat it is."""
    limit: int
    """Largest number of messages after the opening."""
    table: _Table
    """Boxes and live offers; of the points only those of ``role`` are asked for."""
    mindful: bool = False
    """Whether terms are drawn item by item with an eye on what each is worth."""

    def own_messages_left(self, n_turns: int) -> int:
        """Messages of this side that are still to come, the one being written included."""
        return (self.limit - n_turns) // 2 + 1

    def value(self, terms: Terms) -> float:
        """Own points as a share of what this side could get at most, in [0, 1]."""
        if self.role is Role.AGENT:
            top = 1.0 if self.scenario.environment in ("craigslist", "job_interview") else 2.0
            return self.table.reward(terms) / top
        return min(1.0, max(0.0, self.table.worth(terms) / self._partner_top()))

    def draw(self, rng: random.Random) -> Terms:
        """Any sensible terms."""
        name, facts = self.scenario.environment, self.scenario.facts
        if name == "ultimatum":
            return self.round(100 * facts["pool"] * rng.uniform(0.1, 0.95), rng)
        if name == "craigslist":
            return self.round(100 * facts["list_price"] * rng.uniform(0.5, 1.0), rng)
        if self.mindful and name in ("deal_or_no_deal", "casino"):
            return self._share(rng)
        if self.mindful and name == "job_interview":
            return self._offer(rng)
        return tuple(rng.randint(*ends) for ends in self._ranges())

    def between(self, own: Terms, theirs: Terms, rng: random.Random) -> Terms:
        """Terms on the way from the own offer to the other side's."""
        if not isinstance(own, tuple):
            low, high = sorted((own, theirs))
            part = rng.uniform(0.1, 0.75)
            return min(max(self.round(own + part * (theirs - own), rng), low), high)
        mixed: list[int] = []
        for mine, other in zip(own, theirs, strict=True):
            far = isinstance(mine, int) and abs(mine - other) > 1 and self._ordered(len(mixed))
            if far and rng.random() < 0.5:
                mixed.append(rng.randint(min(mine, other), max(mine, other)))
            else:
                mixed.append(other if rng.random() < 0.4 else mine)
        return tuple(mixed)

    def round(self, cents: float, rng: random.Random) -> int:
        """An amount as people name it: round to the size of what is at stake."""
        if self.scenario.environment == "ultimatum":
            step = 100 * int(self.scenario.facts["pool"]) // (20 if rng.random() < 0.8 else 100)
            return round(cents / step) * step
        price = float(self.scenario.facts["list_price"])
        size = 1.0
        while size * 100 <= price:
            size *= 10
        step = max(100 if price >= 20 else 50, round(100 * size * rng.choice((1.0, 0.5, 0.5, 0.1))))
        return int(max(step, round(cents / step) * step))

    def _share(self, rng: random.Random) -> Terms:
        """Each unit of an item is asked for the more often, the more it is worth."""
        facts, name = self.scenario.facts, f"{self.role.value}_"
        if self.scenario.environment == "casino":
            order = facts[f"{name}order"]
            wish = [(0.75, 0.55, 0.3)[order.index(item)] for item in PACKAGES]
        else:
            wish = [_WISH[min(v, len(_WISH) - 1)] for v in facts[f"{name}values"]]
        mine = [
            sum(rng.random() < p for _ in range(most))
            for p, (_, most) in zip(wish, self._ranges(), strict=True)
        ]
        if self.role is Role.AGENT:
            return tuple(mine)
        return tuple(most - n for n, (_, most) in zip(mine, self._ranges(), strict=True))

    def _offer(self, rng: random.Random) -> Terms:
        """Each issue for itself: options of more points are drawn more often."""
        sheet = getattr(cast(Any, self.table), self.role.value)
        terms: list[int] = []
        for part in sheet:
            points = part[terms[-1]] if isinstance(part[0], tuple) else part
            weights = [math.exp(12.0 * p) for p in points]
            terms += rng.choices(range(len(points)), weights)
        return tuple(terms)

    def _ordered(self, i: int) -> bool:
        return self.scenario.environment != "alliance" and (
            self.scenario.environment != "job_interview" or i < 2
        )

    def _ranges(self) -> Sequence[tuple[int, int]]:
        if self.scenario.environment == "deal_or_no_deal":
            return [(0, n) for n in self.scenario.facts["counts"]]
        if self.scenario.environment == "casino":
            return [(0, 3)] * 3
        return [(0, n - 1) for n in cast(Any, self.table).agenda.shape]

    def _partner_top(self) -> float:
        facts = self.scenario.facts
        if self.scenario.environment == "craigslist":
            return max(1.0, 100.0 * (float(facts["list_price"]) - float(facts["target"])))
        if self.scenario.environment == "ultimatum":
            return float(facts["pool"])
        tops = {"deal_or_no_deal": 10.0, "casino": 36.0, "job_interview": 1.0, "alliance": 100.0}
        return tops[self.scenario.environment]


def position(
    environment: Environment, scenario: Scenario, role: Role, *, mindful: bool = False
) -> Position:
    """A seat at one scenario."""
    table = cast(_Table, cast(Bargaining, environment).bargain(scenario))
    limit: int = cast(Any, environment).limit(scenario)
    return Position(scenario, role, limit, table, mindful)
