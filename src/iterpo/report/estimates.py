"""Estimates: a measure of a method by round or in the chosen rounds, with the spread there is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from iterpo.experiments.comparison import players
from iterpo.experiments.speakers import YardstickName
from iterpo.experiments.study import BASE
from iterpo.experiments.study_records import StudyFacts
from iterpo.measure.intervals import Interval, mean_interval
from iterpo.report.sources import ALL_KERNELS
from iterpo.report.tables import Estimate

__all__ = ["Player", "by_round", "chosen", "learners", "roster"]

Kind = Literal["base", "method", "control", "fixed"]
_FIXED = get_args(YardstickName)


@dataclass(frozen=True, slots=True)
class Player:
    """A row of the tables."""

    name: str
    """Label in the records."""
    kind: Kind
    """pi_0, a method, a control that must not learn, or a fixed agent."""
    present: bool = True
    """Whether the sources tell of it; a yardstick has its row even if not."""


def roster(facts: StudyFacts) -> tuple[Player, ...]:
    """Who has a row: pi_0, the methods, controls, then fixed agents, present or not."""
    there = {r["method"] for r in facts.records}
    learning = [m for m in players(facts) if m not in (BASE, *_FIXED)]
    known = facts.meta["study"]["methods"]
    controls = [m for m in learning if _is_control(m, known.get(m))]
    rows = [Player(BASE, "base", BASE in there)]
    rows += [Player(m, "method") for m in learning if m not in controls]
    rows += [Player(m, "control") for m in controls] or [Player("shuffled", "control", False)]
    rows += [Player(name, "fixed", name in there) for name in _FIXED]
    return tuple(rows)


def learners(facts: StudyFacts) -> tuple[str, ...]:
    """Methods and controls that are there, in the order of the tables."""
    return tuple(p.name for p in roster(facts) if p.kind in ("method", "control") and p.present)


def _is_control(name: str, settings: Mapping[str, Any] | None) -> bool:
    """Whether it learns from permuted returns; where no settings are known, its name tells."""
    q = (settings or {}).get("q")
    shuffled = q.get("shuffle_returns") if isinstance(q, Mapping) else None
    return bool(shuffled) if shuffled is not None else "shuffled" in name


def by_round(
    facts: StudyFacts, game: str, method: str, measure: str, split: str = "train"
) -> dict[int, Estimate]:
    """A measure in every round: the mean over seeds, with the standard error over them.

    With a single seed, the error is that over its kernels.
    """
    rows = _rows(facts, game, method, split)
    return {
        i: found
        for i in sorted({r["round"] for r in rows})
        if (found := _estimate(facts, [r for r in rows if r["round"] == i], measure))
    }


def chosen(
    facts: StudyFacts, game: str, method: str, measure: str = "J_agent_turn"
) -> Estimate | None:
    """The same of the rounds that would be deployed, on held-out kernels."""
    rows = [r for r in _rows(facts, game, method, "heldout") if r["selected"]]
    return _estimate(facts, rows, measure)


def _rows(facts: StudyFacts, game: str, method: str, split: str) -> list[dict[str, Any]]:
    key = (game, method, split)
    return [r for r in facts.records if (r["game"], r["method"], r["split"]) == key]


def _estimate(facts: StudyFacts, rows: Sequence[dict[str, Any]], measure: str) -> Estimate | None:
    told = [r for r in rows if r[measure] is not None]
    if not told:
        return None
    values = [float(r[measure]) for r in told]
    if len(told) > 1:
        return Estimate(mean_interval(values, [str(r["seed"]) for r in told]), "seeds")
    (row,) = told
    means = list(_kernels(facts, row, measure))
    if len(means) > 1:
        spread = mean_interval(means, [str(i) for i in range(len(means))])
        return Estimate(_around(values[0], spread.se, len(means)), "kernels")
    if measure == "J_agent_turn" and row["J_se"] is not None:
        return Estimate(_around(values[0], float(row["J_se"]), 1), "kernels")
    return Estimate(_around(values[0], math.nan, 1), "nothing")


def _around(mean: float, se: float, clusters: int) -> Interval:
    """Only the mean and its error are told, so the ends are left open."""
    return Interval(mean, se, -math.inf, math.inf, clusters, clusters)


def _kernels(facts: StudyFacts, row: Mapping[str, Any], measure: str) -> Iterable[float]:
    key = [row[k] for k in ("game", "method", "seed", "round", "split")]
    for k in facts.kernels:
        if k["kernel"] != ALL_KERNELS and key == [
            k["game"],
            k["method"],
            k["seed"],
            k["round"],
            k["split"],
        ]:
            yield float(k[measure])
