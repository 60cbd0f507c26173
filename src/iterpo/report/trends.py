"""Figures 2, 3 and 4 of the paper and their company: what each round was worth, and differences."""

from __future__ import annotations

import math

from iterpo.experiments.study import BASE
from iterpo.report.estimates import by_round, learners
from iterpo.report.figures import Bars, Dots, Figure, Line, Lines
from iterpo.report.findings import against, best_attainable
from iterpo.report.sources import Material
from iterpo.report.tables import Table

__all__ = ["difference_figure", "round_figure", "split_figure"]

_PARTS = (("more agreements", 0), ("better deals", 1), ("shorter conversations", 2))


def round_figure(
    material: Material, name: str, title: str, measure: str, split: str
) -> Figure | None:
    """A measure by round, a line a method, with bands of one standard error.

    None where no method has two rounds.
    """
    names = learners(material.facts)
    panels = []
    for game in material.facts.games:
        part = material.of(game)
        lines = []
        for style, method in enumerate(names):
            found = by_round(part, game, method, measure, split)
            if len(found) > 1:
                y = tuple(e.interval.mean for e in found.values())
                se = tuple(e.interval.se for e in found.values())
                lines.append(Line(style, tuple(map(float, found)), y, se))
        star = best_attainable(material, game, split) if measure == "J_agent_turn" else None
        if lines:
            panels.append(Lines(game, tuple(lines), "round", _LABELS[measure], level=star))
    if not panels:
        return None
    used = {line.style for panel in panels for line in panel.lines}
    legend = tuple((m, i) for i, m in enumerate(names) if i in used)
    known = any(panel.level is not None for panel in panels)
    return Figure(name, title, tuple(panels), legend, level="J*" if known else "")


_LABELS = {
    "J_agent_turn": "return J",
    "turns": "agent turns",
    "reward": "terminal reward",
    "agreement": "share of agreements",
}


def difference_figure(material: Material, other: str) -> Figure | None:
    """Differences from one of them with their intervals, game by game; None where there is none."""
    panels = []
    for game in material.facts.games:
        found = against(material, game, other)
        if found:
            means = tuple(c.found.difference.mean for c in found)
            ends = tuple((c.found.difference.low, c.found.difference.high) for c in found)
            names = tuple(c.method for c in found)
            panels.append(Dots(game, names, means, ends, f"difference in J from {other}"))
    if not panels:
        return None
    note = (
        "Means with 95% intervals; a filled dot: the interval leaves 0 out (Holm's correction is "
        "in the table). No bar: no interval can be given."
    )
    return Figure("differences", f"Differences from {other}", tuple(panels), note=note)


def split_figure(table: Table, material: Material) -> Figure | None:
    """The parts of the gain, a group of bars a method."""
    panels = []
    names = {*learners(material.facts)} - {BASE}
    at = {column.title: i for i, column in enumerate(table.columns)}
    for game in material.facts.games:
        rows = [r for r in table.rows if r[0] == game and r[1] in names]
        values = tuple(tuple(_number(row[at[part]]) for row in rows) for part, _ in _PARTS)
        if rows:
            panels.append(Bars(game, tuple(str(r[1]) for r in rows), values, "part of the gain"))
    if not panels:
        return None
    return Figure("gain-split", table.title, tuple(panels), _PARTS)


def _number(cell: object) -> float:
    return float(cell) if isinstance(cell, int | float) else math.nan
