"""The records of improvement.py as a picture and a table: J by round, beside its controls.

    python benchmarks/learning/figure.py [benchmarks/results/improvement-nano.json]

Writes an SVG beside the records and prints a table in Markdown. Bands and ± are standard errors
over seeds, whose kernels are the same: they hold the spread of draws and training, not of kernels.
"""

from __future__ import annotations

import json
import statistics

from bars import Record, asked, closed, paired, selected, standard_error

from iterpo.artifacts import write_atomic
from iterpo.report.figures import Figure, Line, Lines
from iterpo.report.plots import whole

ARMS = ("iterpo", "shuffled-returns", "first-counter")
"""Whose J is drawn; the last one does not learn, so it is a level line."""
COLUMNS = (
    *("game", "seeds", "before", "IterPO", "gain"),
    *("shuffled returns", "first-counter", "J\\*", "regret closed"),
)


def by_round(records: list[Record], game: str, arm: str) -> dict[int, list[float]]:
    """Held-out J per agent turn of every seed, by round."""
    found: dict[int, list[float]] = {}
    for r in records:
        if (r["game"], r["arm"], r["split"]) == (game, arm, "heldout"):
            found.setdefault(r["round"], []).append(r["J_agent_turn"])
    return dict(sorted(found.items()))


def figure(records: list[Record]) -> Figure:
    """A panel a game: IterPO, its control, the best simple rule, and J* as a thin line."""
    games = sorted({r["game"] for r in records if r["arm"] == "iterpo"})
    last = max(r["round"] for r in records if r["arm"] == "iterpo")
    panels = []
    for game in games:
        lines = []
        for style, arm in enumerate(ARMS):
            rounds = by_round(records, game, arm)
            if rounds.keys() == {0}:
                rounds = {0: rounds[0], last: rounds[0]}
            means = tuple(statistics.fmean(values) for values in rounds.values())
            spread = tuple(standard_error(values) for values in rounds.values())
            lines.append(Line(style, tuple(map(float, rounds)), means, spread))
        best = _best(records, game)
        panels.append(Lines(game, tuple(lines), "round", "J, held-out", best))
    legend = tuple((arm, i) for i, arm in enumerate(ARMS))
    return Figure("improvement-nano", "J by round", tuple(panels), legend, level="J*")


def table(records: list[Record]) -> str:
    """What the chosen rounds reach, a row a game, in Markdown."""
    gain, control = (paired(records, "iterpo", arm) for arm in ("base", "shuffled-returns"))
    shares = closed(records)
    rows = [
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    for game in sorted(gain):
        before, after, other, rule = (
            _chosen(records, game, arm) for arm in ("base", "iterpo", *ARMS[1:])
        )
        mean, se, seeds = gain[game]
        over = f"{other:.2f} ({_signed(*control[game][:2])})" if game in control else "-"
        rows.append(
            f"| {game} | {seeds} | {before:.2f} | {after:.2f} | {_signed(mean, se)} | {over} | "
            f"{rule:.2f} | {_best(records, game):.2f} | {100 * shares[game]:.0f}% |"
        )
    return "\n".join(rows)


def _chosen(records: list[Record], game: str, arm: str) -> float:
    return statistics.fmean(
        r["J_agent_turn"] for (g, _), r in selected(records, arm).items() if g == game
    )


def _best(records: list[Record], game: str) -> float:
    rows = selected(records, "iterpo").items()
    return statistics.fmean(row["J_star"] for (g, _), row in rows if g == game)


def _signed(mean: float, se: float) -> str:
    return f"{mean:+.2f} ± {se:.2f}"


if __name__ == "__main__":
    where = asked(__doc__)
    stored = json.loads(where.read_text())["records"]
    write_atomic(where.with_suffix(".svg"), whole(figure(stored))[0].decode())
    print(table(stored))
