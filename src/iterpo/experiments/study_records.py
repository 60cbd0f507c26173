"""Records of a study: what its finished cells say, in two files that outlive the run folders."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from iterpo.artifacts import write_atomic
from iterpo.config import dump
from iterpo.errors import ArtifactError, MissingDataError
from iterpo.experiments.plan import Plan
from iterpo.experiments.records import RECORDS, read_records
from iterpo.experiments.study import BASE, Cell, Study
from iterpo.experiments.study_cell import STUDY
from iterpo.experiments.versions import Versions, joined, present, read_versions
from iterpo.measure.crossed import Scores

__all__ = [
    "KERNELS",
    "Gathered",
    "StudyFacts",
    "as_base",
    "read_kernels",
    "read_study",
    "with_base",
    "without_places",
    "write_kernels",
]

KERNELS = "kernels.parquet"
"""Means by kernel: ``game method seed round split kernel n`` and the measures."""

Rows = list[dict[str, Any]]


@dataclass(slots=True)
class Gathered:
    """What is known of a study's cells; each cell's records are read once."""

    study: Study
    """The study."""
    folder: Path
    """Its folder."""
    plans: Mapping[Cell, Plan]
    """Its cells."""
    jobs: int = 1
    """Cells side by side."""
    found: dict[Cell, dict[str, Any]] = field(default_factory=dict)
    """Records of finished cells."""

    def look(self) -> None:
        """Find the cells that have finished since."""
        for cell, plan in self.plans.items():
            if cell not in self.found:
                told = read_records(cell.folder(self.folder), plan)
                if told is not None:
                    self.found[cell] = told

    def versions(self) -> list[Versions]:
        """What the finished cells were made with, as far as they tell."""
        folders = [cell.folder(self.folder) for cell in self.plans if cell in self.found]
        return [one for folder in folders for one in read_versions(folder)]

    def write(self, failed: Mapping[Cell, str]) -> None:
        """Both files anew, at once each."""
        ended = [self.found[cell] for cell in self.plans if cell in self.found]
        records = [row for told in ended for row in told["records"]]
        kernels = [row for told in ended for row in told["kernels"]]
        against = self.study.against
        kernels += as_base(kernels, against)
        write_kernels(self.folder / KERNELS, kernels)
        meta = {
            "study": without_places(dump(self.study)),
            "reference": against,
            "versions": joined(self.versions()) or present(),
            "plan_hash": _hash(self.plans),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, {self.jobs} cells at once",
            "unfinished": [str(cell) for cell in self.plans if cell not in self.found],
            "failed": {str(cell): why for cell, why in failed.items()},
        }
        told = {"meta": meta, "records": with_base(records, against)}
        write_atomic(self.folder / RECORDS, json.dumps(told, indent=1, allow_nan=False) + "\n")


@dataclass(frozen=True, slots=True)
class StudyFacts:
    """A study as far as it has come, from its two files alone."""

    folder: Path
    """Where they lie."""
    meta: dict[str, Any]
    """The study, versions, machine, and the cells that are unfinished or have failed."""
    records: tuple[dict[str, Any], ...]
    """A row by game, method, seed, round and split; those of ``base`` and the yardsticks too."""
    kernels: tuple[dict[str, Any], ...]
    """The same by kernel, with the measures only."""

    @property
    def games(self) -> tuple[str, ...]:
        """Environments, in the order of the study."""
        return tuple(self.meta["study"]["environments"])

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods, in the order of the study."""
        return tuple(self.meta["study"]["methods"])

    def of(self, game: str) -> StudyFacts:
        """The part about one game, which is quicker to search."""
        return replace(
            self,
            records=tuple(r for r in self.records if r["game"] == game),
            kernels=tuple(r for r in self.kernels if r["game"] == game),
        )

    def rows(self, game: str, method: str, split: str = "heldout") -> Rows:
        """Rows of the selected rounds, one a seed."""
        key = (game, method, split, True)
        return [
            r for r in self.records if (r["game"], r["method"], r["split"], r["selected"]) == key
        ]

    def scores(
        self, game: str, method: str, measure: str = "J_agent_turn", split: str = "heldout"
    ) -> Scores:
        """Means by seed and kernel, of each seed's selected round."""
        chosen = {(r["seed"], r["round"]) for r in self.rows(game, method, split)}
        out: dict[int, dict[str, float]] = {}
        for row in self.kernels:
            if (row["game"], row["method"], row["split"]) != (game, method, split):
                continue
            if (row["seed"], row["round"]) in chosen:
                out.setdefault(row["seed"], {})[row["kernel"]] = row[measure]
        return out


def read_study(folder: Path) -> StudyFacts:
    """What a study has found so far.

    Args:
        folder: With ``records.json`` and ``kernels.parquet``; nothing else in it is read.

    Raises:
        MissingDataError: if it holds no records of a study.
        ArtifactError: if they can't be read.
    """
    path = folder / RECORDS
    if not path.is_file():
        begun = (folder / STUDY).is_file()
        raise MissingDataError(
            f"{folder} holds no {RECORDS} of a study"
            + (": none of its cells is finished yet" if begun else "; give the folder of one")
        )
    try:
        told = json.loads(path.read_text())
        meta, records = told["meta"], tuple(told["records"])
        kernels = tuple(read_kernels(folder / KERNELS))
    except (ValueError, LookupError, TypeError) as error:
        raise ArtifactError(
            f"{folder} is damaged ({error}): its {RECORDS} or {KERNELS} can't be read. Both are "
            "written anew when the study is run again, which skips its finished cells."
        ) from error
    return StudyFacts(folder, meta, records, kernels)


def as_base(rows: Sequence[Mapping[str, Any]], against: str) -> Iterator[dict[str, Any]]:
    """Round 0 of the reference, under the name of pi_0."""
    yield from (
        {**row, "method": BASE} for row in rows if row["method"] == against and row["round"] == 0
    )


def with_base(records: Rows, against: str) -> Rows:
    """Adds ``base``, and to each row the gain and the share of the regret that it closes.

    Both count from round 0 of the same method and seed, since a method may sample otherwise and so
    start elsewhere; fixed agents are compared with ``base``.
    """
    rows = [*records, *({**row, "selected": True} for row in as_base(records, against))]
    for row in rows:
        if row["method"] == BASE:
            row |= dict.fromkeys(("steps", "candidates", "candidate_tokens"))
    starts = {
        (r["game"], r["method"], r["seed"], r["split"]): r["J_agent_turn"]
        for r in rows
        if r["round"] == 0
    }
    learning = {r["method"] for r in rows if r["round"] > 0}
    out = []
    for row in rows:
        method = row["method"] if row["method"] in learning else BASE
        j0 = starts.get((row["game"], method, row["seed"], row["split"]))
        gain = None if j0 is None else row["J_agent_turn"] - j0
        room = None if j0 is None or row["J_star"] is None else row["J_star"] - j0
        closed = gain / room if gain is not None and room else None
        out.append({**row, "gain": gain, "regret_closed": closed})
    return sorted(out, key=lambda r: [r[k] for k in ("game", "method", "seed", "round", "split")])


def write_kernels(path: Path, rows: Rows) -> None:
    """Means by kernel, as one Parquet file."""
    import pyarrow
    from pyarrow import parquet

    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.Table.from_pylist(rows), sink, compression="zstd")
    write_atomic(path, sink.getvalue().to_pybytes())


def read_kernels(path: Path) -> Rows:
    """What ``write_kernels`` wrote.

    Raises:
        ValueError: if there is no such file, or it is none.
    """
    from pyarrow import parquet

    if not path.is_file():
        raise ValueError(f"{path.name} is missing")
    rows: Rows = parquet.read_table(path).to_pylist()
    return rows


def _hash(plans: Mapping[Cell, Plan]) -> str:
    """Changes with whatever changes the results of any cell."""
    told = sorted((str(cell), plan.identity()) for cell, plan in plans.items())
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def without_places(value: Any) -> Any:
    """Where the data sets lie on this machine is nobody else's matter."""
    if isinstance(value, Mapping):
        return {k: without_places(v) for k, v in value.items() if k != "data_dir"}
    return value
