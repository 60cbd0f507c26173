"""What the records of improvement.py show: the claims that IterPO is held to, one line each.

    python benchmarks/learning/bars.py [benchmarks/results/improvement-nano.json]

All numbers are J per agent turn on held-out kernels, of the round that would be deployed. A gain
is paired by seed: both sides played the same kernels with the same seeds, and the standard error is
that over seeds. "By more than 2 SE" means the mean of the paired differences.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]
DEFAULT = Path(__file__).parents[1] / "results" / "improvement-nano.json"


def asked(doc: str) -> Path:
    """The file of records that a command line names."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("records", nargs="?", type=Path, default=DEFAULT, help="file of records")
    found: Path = parser.parse_args().records
    return found


def selected(records: Iterable[Record], arm: str) -> dict[tuple[str, int], Record]:
    """Held-out row of the chosen round, by game and seed."""
    return {
        (r["game"], r["seed"]): r
        for r in records
        if r["arm"] == arm and r["split"] == "heldout" and r["selected"]
    }


def paired(records: list[Record], arm: str, other: str) -> dict[str, tuple[float, float, int]]:
    """Mean of J(arm) - J(other) over the seeds that both have, its SE and their number, by game."""
    ours, theirs = selected(records, arm), selected(records, other)
    by_game: dict[str, list[float]] = {}
    for key in sorted(ours.keys() & theirs.keys()):
        difference = ours[key]["J_agent_turn"] - theirs[key]["J_agent_turn"]
        by_game.setdefault(key[0], []).append(difference)
    return {
        game: (statistics.fmean(found), standard_error(found), len(found))
        for game, found in by_game.items()
    }


def standard_error(values: Sequence[float]) -> float:
    """Of the mean; NaN for a single value."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")


def fallen(records: list[Record], arm: str = "iterpo") -> list[str]:
    """Runs whose chosen round is below round 0 by more than one SE, paired by kernel."""
    return [
        f"{game} seed {seed}: {row['gain']:+.3f} (SE {row['gain_se']:.3f})"
        for (game, seed), row in selected(records, arm).items()
        if row["gain"] < -(row["gain_se"] or 0)
    ]


def drops(records: list[Record], arm: str = "iterpo", share: float = 0.1) -> list[str]:
    """Rounds that lost more than a share of the round before."""
    held = {
        (r["game"], r["seed"], r["round"]): r["J_agent_turn"]
        for r in records
        if r["arm"] == arm and r["split"] == "heldout"
    }
    return [
        f"{game} seed {seed}: round {i} {j:.3f} after {held[game, seed, i - 1]:.3f}"
        for (game, seed, i), j in sorted(held.items())
        if i and j < (1 - share) * held[game, seed, i - 1]
    ]


def closed(records: list[Record], arm: str = "iterpo") -> dict[str, float]:
    """Share of the regret of round 0 that the chosen round closed, mean over seeds, by game."""
    by_game: dict[str, list[float]] = {}
    for (game, _), row in selected(records, arm).items():
        by_game.setdefault(game, []).append(row["regret_closed"])
    return {game: statistics.fmean(found) for game, found in sorted(by_game.items())}


def report(records: list[Record]) -> str:
    """All claims, with what was found."""
    lines = []
    for other in ("base", "shuffled-returns", "first-counter"):
        found = paired(records, "iterpo", other)
        for game, (mean, se, n) in found.items():
            held = "one seed" if n == 1 else "yes" if mean > 2 * se else "NO"
            lines.append(f"iterpo > {other:16} {game:16} {mean:+.3f} ± {se:.3f} ({n} seeds) {held}")
    for said, found_bad in (
        ("runs below base by more than 1 SE", fallen(records)),
        ("rounds that lost more than 10%", drops(records)),
    ):
        lines += [f"{said}: {len(found_bad)}", *(f"  {line}" for line in found_bad)]
    shares = closed(records)
    lines += [f"regret closed    {game:16} {share:.2f}" for game, share in shares.items()]
    if shares:
        lines.append(f"regret closed    mean {statistics.fmean(shares.values()):.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(report(json.loads(asked(__doc__).read_text())["records"]))
