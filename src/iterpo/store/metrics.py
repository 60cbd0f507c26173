"""The run's own table of training metrics: one row per (round, phase, step).

Trackers are fed besides, never instead. Rows are keyed by round, phase and step rather than by a
global step, so rounds can't overwrite each other (pain 54), and hold no wall-clock values, so two
runs of one plan give equal tables.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from iterpo.artifacts import naming_full_disk, write_atomic

__all__ = ["METRICS", "MetricsTable", "read_metrics"]

METRICS = "metrics.jsonl"
"""Name of the table inside an artefact folder."""


class MetricsTable:
    """Rows of one phase, kept on disk step by step."""

    def __init__(self, path: Path, *, round: int, phase: str) -> None:  # noqa: A002
        """Open the table; rows of an earlier attempt are kept until their step is written again."""
        self._path = path
        self._key = {"round": round, "phase": phase}
        self._rows: dict[int, dict[str, Any]] = {}
        if path.exists():
            self._rows = {r["step"]: r for r in read_metrics(path)}
            self._rewrite()  # drops a line that a crash cut off, before anything is appended to it

    def record(self, step: int, values: Mapping[str, float]) -> None:
        """Append a row; a step that is written again replaces the old row and all later ones."""
        rewound = any(s >= step for s in self._rows)
        self._rows = {s: r for s, r in self._rows.items() if s < step}
        row = {**self._key, "step": step, "values": {k: _finite(v) for k, v in values.items()}}
        self._rows[step] = row
        if rewound:
            self._rewrite()
        else:
            with naming_full_disk(self._path):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a", encoding="utf-8") as stream:
                    stream.write(_line(row))

    def _rewrite(self) -> None:
        write_atomic(self._path, "".join(map(_line, self._rows.values())))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All rows of a table; a last line that was cut off by a crash is left out."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, sort_keys=True) + "\n"


def _finite(value: float) -> float | None:
    """Nine significant digits: all of a float32, and no more than tiny learning rates need."""
    number = float(value)
    return float(f"{number:.9g}") if math.isfinite(number) else None
