"""Cells of a benchmark of learning: a game, an arm and a seed; their plans and their records."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from iterpo.artifacts import write_atomic
from iterpo.experiments.plan import Plan, load_plan

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
_WITH_DATA = [f"environment.options.data_dir={DATA}"]
GAMES: dict[str, list[str]] = {
    "ultimatum": [],
    "deal_or_no_deal": _WITH_DATA,
    "craigslist": _WITH_DATA,
    "casino": _WITH_DATA,
    "job_interview": [],
    "alliance": [],
}
"""Settings that a game needs."""


def cell_plan(
    path: Path, game: str, arm: Iterable[str], seed: int, extra: Iterable[str] = ()
) -> Plan:
    """The plan of one cell; the seed changes every draw, the kernels stay."""
    seeds = [f"seed={seed}", f"q.seed={seed}", f"improve.seed={seed}"]
    return load_plan(path, [f"environment.name={game}", *GAMES[game], *arm, *seeds, *extra])


def versions() -> dict[str, str]:
    """Of all packages that have a say in learning."""
    return {n: version(n) for n in ("iterpo", "torch", "transformers", "trl", "peft")}


def write_records(
    path: Path, meta: Mapping[str, Any], records: Sequence[Mapping[str, Any]]
) -> None:
    """All that is known so far, at once."""
    write_atomic(path, json.dumps({"meta": meta, "records": records}, indent=1) + "\n")


def mean_se(values: Sequence[float]) -> str:
    """A mean over seeds and its standard error."""
    se = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{statistics.fmean(values):+.3f} ± {se:.3f}"
