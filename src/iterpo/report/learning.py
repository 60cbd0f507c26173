"""How learning went: health of Q by round, training metrics by step, and what updates came to."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from iterpo.report.figures import Figure, Line, Lines
from iterpo.report.sources import CellRun, Material
from iterpo.report.tables import Cell, Column, Table, by_first
from iterpo.store import METRICS, read_metrics

__all__ = [
    "calibration",
    "correlation_by_turn",
    "curves",
    "health_table",
    "turn_table",
    "update_table",
]

_FEWEST = 10
_CURVES = (
    ("improve", "reward", "mean reward of the candidates (Q)"),
    ("improve", "kl_response", "KL to the round's policy, nats a response"),
    ("improve", "entropy", "entropy, nats a token"),
    ("improve", "completion_tokens", "tokens a response"),
    ("improve", "loss", "loss of the update"),
    ("fit_q", "report/heldout_mse", "squared error of Q on unseen rows"),
)

_Health = tuple[CellRun, int, Mapping[str, Any]]


def _healths(material: Material) -> Iterator[_Health]:
    """Every Q that was fitted, and what is known of its fit on unseen rows."""
    for cell_run in material.runs:
        for r in cell_run.run.rounds:
            health = (r.update or {}).get("q_health") or {}
            if health.get("fit"):
                yield cell_run, r.round, health


def health_table(material: Material) -> Table | None:
    """Fit of every Q on rows that it was not fitted on."""
    rows: list[tuple[Cell, ...]] = []
    for one, i, health in _healths(material):
        fit = health["fit"]
        numbers = [fit.get(k) for k in ("pearson", "spearman", "r2", "slope", "intercept", "mse")]
        who: tuple[Cell, ...] = (one.cell.environment, one.cell.method, one.cell.seed, i)
        unseen = (health.get("heldout") or {}).get("rows")
        rows.append((*who, health.get("rows"), unseen, *numbers, fit.get("variance")))
    if not rows:
        return None
    columns = (
        *(Column(t) for t in ("game", "method")),
        *(Column(t, "count") for t in ("seed", "round", "rows", "unseen rows")),
        *(Column(t, "number") for t in ("correlation", "rank corr.", "R²", "slope", "intercept")),
        Column("mse", "number"),
        Column("var. of returns", "number"),
    )
    note = (
        "On conversations that Q was not fitted on. A calibrated Q has slope 1 and intercept 0; an "
        "mse at the variance of the returns is that of a constant."
    )
    return Table(
        "q-health", "Health of Q by round", columns, tuple(rows), note, rules=by_first(rows)
    )


def calibration(material: Material, method: str) -> Figure | None:
    """Mean return against mean Q in ten groups of equal size, a line a round."""
    panels = []
    for game in material.facts.games:
        lines = []
        for i, fits in _fits(material, game, method).items():
            bins = [fit["bins"] for fit in fits if fit.get("bins")]
            same = [b for b in bins if len(b) == len(bins[0])]
            if same:
                x, y = (_averaged(same, k) for k in ("predicted", "observed"))
                lines.append(Line(i, x, y))
        if lines:
            panels.append(Lines(game, tuple(lines), "Q", "return", diagonal=True))
    return _figure(
        f"q-calibration-{method}",
        f"Calibration of Q: {method}",
        panels,
        "Unseen rows in groups of equal size by their Q: mean return against mean Q (mean over "
        "seeds). On the diagonal, Q promises what is returned.",
    )


def correlation_by_turn(material: Material, method: str) -> Figure | None:
    """Correlation of Q with the return, by index t of the agent's turn, a line a round."""
    panels = []
    for game in material.facts.games:
        lines = []
        for i, fits in _fits(material, game, method).items():
            found = _by_turn(fits)
            if found:
                values = [math.fsum(v) / len(v) for v in found.values()]
                lines.append(Line(i, tuple(map(float, found)), tuple(values)))
        if lines:
            panels.append(Lines(game, tuple(lines), "agent turn t", "correlation", level=0.0))
    return _figure(
        f"q-by-turn-{method}",
        f"Correlation of Q with the return by turn: {method}",
        panels,
        f"Unseen rows, mean over seeds; turns with fewer than {_FEWEST} rows are left out.",
    )


def turn_table(material: Material, method: str) -> Table | None:
    """The numbers of both figures, by game, round and turn."""
    rows: list[tuple[Cell, ...]] = []
    for game in material.facts.games:
        for i, fits in _fits(material, game, method).items():
            told = _by_turn(fits)
            for t, values in told.items():
                at = [x for fit in fits for x in fit["turns"] if x["t"] == t]
                n = sum(x["n"] for x in at)
                q, ret = (
                    math.fsum(x["n"] * x[k] for x in at) / n for k in ("mean_q", "mean_return")
                )
                rows.append((game, i, t, n, math.fsum(values) / len(values), q, ret))
    if not rows:
        return None
    columns = (
        Column("game"),
        *(Column(t, "count") for t in ("round", "turn t", "rows")),
        *(Column(t, "number") for t in ("correlation", "mean Q", "mean return")),
    )
    title = f"Q by turn: {method}"
    return Table(
        f"q-by-turn-{method}",
        title,
        columns,
        tuple(rows),
        "Unseen rows, all seeds.",
        rules=by_first(rows),
        folded=True,
    )


def _fits(material: Material, game: str, method: str) -> dict[int, list[Mapping[str, Any]]]:
    out: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for one, i, health in _healths(material):
        if (one.cell.environment, one.cell.method) == (game, method):
            out[i].append(health["fit"])
    return dict(sorted(out.items()))


def _by_turn(fits: Sequence[Mapping[str, Any]]) -> dict[int, list[float]]:
    out: dict[int, list[float]] = defaultdict(list)
    for fit in fits:
        for row in fit.get("turns") or ():
            if row["n"] >= _FEWEST and row.get("pearson") is not None:
                out[int(row["t"])].append(float(row["pearson"]))
    return dict(sorted(out.items()))


def _averaged(bins: Sequence[Sequence[Mapping[str, Any]]], key: str) -> tuple[float, ...]:
    """Mean over seeds of the groups of the same rank."""
    return tuple(math.fsum(b[key] for b in rank) / len(rank) for rank in zip(*bins, strict=True))


def _figure(name: str, title: str, panels: Sequence[Lines], note: str) -> Figure | None:
    if not panels:
        return None
    rounds = sorted({line.style for panel in panels for line in panel.lines})
    legend = tuple((f"round {i}", i) for i in rounds)
    return Figure(name, title, tuple(panels), legend, note)


def curves(material: Material, methods: Sequence[str]) -> list[tuple[Figure, Table]]:
    """Training metrics over the steps of all rounds, with their numbers."""
    tables = _tables(material)
    out = []
    for phase, key, meaning in _CURVES:
        panels, rows = [], []
        label = key.rpartition("/")[2].replace("_", " ")
        for game in material.facts.games:
            lines: list[Line] = []
            marks: tuple[float, ...] = ()
            for style, method in enumerate(methods):
                per_round = _mean_curves(tables, (game, method, phase), key)
                if not per_round:
                    continue
                rows += [(game, method, i, *_ends(v)) for i, v in per_round.items()]
                y = tuple(v for values in per_round.values() for v in values)
                lines.append(Line(style, tuple(float(x) for x in range(1, len(y) + 1)), y))
                ends = [len(v) for v in per_round.values()]
                marks = max(marks, tuple(float(sum(ends[:k])) + 0.5 for k in range(1, len(ends))))
            if lines:
                panels.append(Lines(game, tuple(lines), "step", label, marks=marks[:8]))
        if panels:
            name = f"curve-{label.replace(' ', '-')}"
            out.append(_curve(name, meaning, panels, rows, methods))
    return out


def _curve(
    name: str,
    meaning: str,
    panels: Sequence[Lines],
    rows: Sequence[tuple[Cell, ...]],
    methods: Sequence[str],
) -> tuple[Figure, Table]:
    used = {line.style for panel in panels for line in panel.lines}
    legend = tuple((m, i) for i, m in enumerate(methods) if i in used)
    title = f"{meaning[0].upper()}{meaning[1:]}"
    note = "Mean over seeds, step by step; thin vertical lines are the ends of rounds."
    columns = (
        *(Column(t) for t in ("game", "method")),
        *(Column(t, "count") for t in ("round", "steps")),
        *(Column(t, "number") for t in ("first", "mean", "last")),
    )
    return (
        Figure(name, title, tuple(panels), legend, note),
        Table(name, title, columns, tuple(rows), rules=by_first(rows), folded=True),
    )


_Key = tuple[str, str, str]


def _tables(material: Material) -> dict[_Key, list[dict[int, list[dict[str, Any]]]]]:
    """Metrics by game, method and phase; a run each, by round."""
    out: dict[_Key, list[dict[int, list[dict[str, Any]]]]] = defaultdict(list)
    for one in material.runs:
        for phase in ("improve", "fit_q"):
            found = {}
            for r in one.run.rounds:
                place = one.run.folder / f"round-{r.round}" / "update" / "metrics"
                path = place / f"{phase}-{METRICS}"
                if path.is_file():
                    found[r.round] = [row["values"] for row in read_metrics(path)]
            out[one.cell.environment, one.cell.method, phase].append(found)
    return out


def _mean_curves(
    tables: Mapping[_Key, list[dict[int, list[dict[str, Any]]]]], where: _Key, key: str
) -> dict[int, list[float]]:
    """By round, the mean over runs at each step that all of them have."""
    runs = tables.get(where, [])
    out = {}
    for i in sorted({i for found in runs for i in found}):
        told = [
            [float(v[key]) for v in found[i] if v.get(key) is not None]
            for found in runs
            if i in found
        ]
        steps = list(zip(*[t for t in told if t], strict=False))
        if steps:
            out[i] = [math.fsum(step) / len(step) for step in steps]
    return out


def _ends(values: Sequence[float]) -> tuple[int, float, float, float]:
    return len(values), values[0], math.fsum(values) / len(values), values[-1]


def update_table(material: Material) -> Table | None:
    """What was said of every policy before it was deployed."""
    rows: list[tuple[Cell, ...]] = []
    for one in material.runs:
        for r in one.run.rounds:
            told = r.update or {}
            if "verdict" in told:
                kl = (told.get("evidence") or {}).get("kl")
                who: tuple[Cell, ...] = (one.cell.environment, one.cell.method, one.cell.seed)
                rows.append((*who, r.round, str(told["verdict"]), kl, str(told.get("why", ""))))
    if not rows:
        return None
    columns = (
        *(Column(t) for t in ("game", "method")),
        *(Column(t, "count") for t in ("seed", "round")),
        Column("verdict"),
        Column("KL", "number"),
        Column("why"),
    )
    title = "Verdicts on updates, before their policies were deployed"
    return Table("updates", title, columns, tuple(rows), rules=by_first(rows))
