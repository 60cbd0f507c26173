"""Overall: where the methods of a study stand over all games that every one of them has played."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iterpo.experiments.comparison import SURE, Contrast, contrasts, players, standings
from iterpo.experiments.study import BASE
from iterpo.experiments.study_records import StudyFacts
from iterpo.measure.crossed import Crossed, averaged_difference
from iterpo.measure.holm import holm

__all__ = ["Overall", "Overview", "overview"]


@dataclass(frozen=True, slots=True)
class Overall:
    """One method over several games; held-out kernels, selected rounds, every game weighs the same.

    Returns are told as shares of J*, since games pay on different scales.
    """

    method: str
    """Method or ``base``."""
    rank: float
    """Mean rank by J among all of the overview; 1 is the best, equals share theirs."""
    attained: float | None
    """Mean of J / J*; None where some J* is not known."""
    regret_closed: float | None
    """Mean of (J - J0) / (J* - J0); None where some of it is not known."""
    difference: Crossed | None
    """Mean of the difference in J / J* from the reference; None for the reference itself, and
    without J*."""
    p_holm: float | None
    """Its p-value, adjusted by Holm over the methods; None for ``base`` and where there is none."""
    above: tuple[str, ...]
    """Games in which its J is significantly above that of the reference (Holm within the game)."""
    below: tuple[str, ...]
    """Games in which it is significantly below."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        told = {name: getattr(self, name) for name in self.__dataclass_fields__}
        found = self.difference
        return {**told, "difference": found.to_dict() if found else None}


@dataclass(frozen=True, slots=True)
class Overview:
    """The methods of a study and pi_0 over the games that all of them have played."""

    against: str
    """The reference."""
    games: tuple[str, ...]
    """Games that count."""
    rows: tuple[Overall, ...]
    """Best mean rank first."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        rows = [row.to_dict() for row in self.rows]
        return {"against": self.against, "games": list(self.games), "rows": rows}


def overview(facts: StudyFacts, against: str | None = None) -> Overview | None:
    """The methods and pi_0 over all games that every one of them has finished under some seed.

    Args:
        facts: The study.
        against: Reference; None: that of the study.

    Returns:
        None where fewer than two games count, or the reference has played in none.
    """
    names = [m for m in players(facts) if m in (*facts.methods, BASE)]
    other = against or facts.meta["reference"]
    parts = {g: facts.of(g) for g in facts.games}
    found = {
        g: {s.method: s for s in standings(part, g) if s.method in names}
        for g, part in parts.items()
    }
    games = tuple(g for g in facts.games if len(found[g]) == len(names))
    if len(games) < 2 or other not in players(facts):
        return None
    versus = {g: _versus(parts[g], g, other) for g in games}
    stars = [found[g][names[0]].j_star for g in games]
    ranks = [_ranks({m: found[g][m].J.mean for m in names}) for g in games]
    differences = {m: _average([versus[g].get(m) for g in games], stars) for m in names}
    adjusted = holm({m: d.p for m, d in differences.items() if d and m != BASE})
    rows = []
    for m in names:
        standing, told = [found[g][m] for g in games], [versus[g].get(m) for g in games]
        p = adjusted.get(m, math.nan)
        rows.append(
            Overall(
                m,
                math.fsum(r[m] for r in ranks) / len(games),
                _mean(
                    [
                        s.J.mean / star if star else None
                        for s, star in zip(standing, stars, strict=True)
                    ]
                ),
                _mean([s.regret_closed.mean if s.regret_closed else None for s in standing]),
                differences[m],
                None if math.isnan(p) else p,
                _decided(told, 1),
                _decided(told, -1),
            )
        )
    return Overview(other, games, tuple(sorted(rows, key=lambda r: r.rank)))


def _versus(part: StudyFacts, game: str, other: str) -> dict[str, Contrast]:
    """By method; nothing where a fixed agent as the reference has not played the game."""
    found = contrasts(part, game, other) if other in players(part) else ()
    return {c.method: c for c in found}


def _ranks(values: Mapping[str, float]) -> dict[str, float]:
    """1 for the highest; equals share the mean of their places."""
    return {
        m: 1 + sum(w > v for w in values.values()) + (sum(w == v for w in values.values()) - 1) / 2
        for m, v in values.items()
    }


def _average(found: Sequence[Contrast | None], stars: Sequence[float | None]) -> Crossed | None:
    told = [(c.found, star) for c, star in zip(found, stars, strict=True) if c and star]
    if len(told) < len(found):
        return None
    return averaged_difference([one for one, _ in told], [star for _, star in told])


def _decided(found: Sequence[Contrast | None], sign: int) -> tuple[str, ...]:
    sure = [c for c in found if c and c.p_holm is not None and c.p_holm < SURE]
    return tuple(c.game for c in sure if c.found.difference.mean * sign > 0)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None
