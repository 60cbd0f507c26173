"""Material: what a report is made of, read from run folders, studies and files of records."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from iterpo.config import dump
from iterpo.errors import ConfigError, DataError, MissingDataError
from iterpo.experiments.comparison import unmoved
from iterpo.experiments.ledger import PLAN
from iterpo.experiments.plan import Plan
from iterpo.experiments.records import RECORDS, run_records
from iterpo.experiments.results import RunFacts, read_run
from iterpo.experiments.speakers import YardstickName
from iterpo.experiments.study import BASE, Cell
from iterpo.experiments.study_cell import STUDY
from iterpo.experiments.study_records import (
    KERNELS,
    StudyFacts,
    as_base,
    read_kernels,
    read_study,
    with_base,
    without_places,
)
from iterpo.experiments.versions import joined
from iterpo.report.behaviours import found_beside

__all__ = ["ALL_KERNELS", "CellRun", "Material", "read_material"]

ALL_KERNELS = "(all kernels)"
"""Stands for the kernels where a file of records tells none of them apart."""

Rows = list[dict[str, Any]]

_NAMED = 4  # unfinished cells; a study has hundreds

_YARDSTICKS = get_args(YardstickName)

_KEYS = ("game", "seed", "round", "split", "J_agent_turn")
_MEASURES = ("J_agent_turn", "J_message", "agreement", "turns", "reward")
_OPTIONAL = (
    *("J_message", "agreement", "turns", "reward", "J_se", "J_star", "discount", "deal", "no_deal"),
    *("conversations", "tokens", "steps", "candidates", "candidate_tokens", "wall_s", "verdict"),
    *("gain", "regret_closed", "plan"),
)


@dataclass(frozen=True, slots=True)
class CellRun:
    """A run folder, and what it is called in the tables."""

    cell: Cell
    """Game, method and seed."""
    run: RunFacts
    """What the folder says."""


@dataclass(frozen=True, slots=True)
class Material:
    """All that a report tells of."""

    facts: StudyFacts
    """Records of all sources, as of one study."""
    runs: tuple[CellRun, ...]
    """Run folders among the sources."""
    behaviours: tuple[dict[str, Any], ...]
    """Results of `iterpo behavior` that lie beside."""
    names: tuple[str, ...]
    """The sources' own names, without the folders that they lie in."""
    notes: tuple[str, ...]
    """What a reader has to know of the sources."""

    def of(self, game: str) -> StudyFacts:
        """The part about one game, which is quicker to search."""
        return self.facts.of(game)


@dataclass(slots=True)
class _Gathering:
    """Sources as they are read."""

    records: Rows = field(default_factory=list)
    kernels: Rows = field(default_factory=list)
    runs: list[CellRun] = field(default_factory=list)
    games: dict[str, Any] = field(default_factory=dict)
    methods: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    behaviours: list[dict[str, Any]] = field(default_factory=list)
    kinds: dict[str, list[str]] = field(default_factory=dict)

    def tell(self, meta: Mapping[str, Any]) -> None:
        """What a source says of itself: versions of all, of other things the first."""
        told = [m.get("versions") for m in (self.meta, meta)]
        versions = joined(v for v in told if isinstance(v, Mapping))
        self.meta = {**meta, **self.meta, "versions": versions}

    def add(self, records: Iterable[Mapping[str, Any]], kernels: Iterable[dict[str, Any]]) -> None:
        rows = [{**dict.fromkeys(_OPTIONAL), "selected": False, **r} for r in records]
        cells = {_cell(r) for r in self.records}
        if twice := sorted({str(_cell(r)) for r in rows} & set(map(str, cells))):
            raise ConfigError(
                f"two sources tell of {', '.join(twice[:4])}; give each cell once, or make a "
                "report of each"
            )
        self.records += rows
        self.kernels += kernels
        for row in rows:
            self.games.setdefault(row["game"], {})


def read_material(sources: Sequence[Path], against: str | None = None) -> Material:
    """Read run folders, study folders and files of records, and put them together.

    Args:
        sources: At least one.
        against: Reference, whose pi_0 is `base` and whose runs are looked into; None: that of the
            study, or the first method.

    Raises:
        MissingDataError: if a source holds nothing to report.
        DataError: if a file of records hasn't their layout.
        ConfigError: if two sources tell of the same cell, or nobody is called ``against``.
        ArtifactError: if a run or a study is damaged.
    """
    seen = _Gathering()
    paths = list(dict.fromkeys(p.resolve() for p in sources))
    for path in sorted(paths, key=_is_run):  # runs last: they may belong to records
        if not path.exists():
            raise MissingDataError(f"there is no {path}; give run folders, studies or records")
        if _is_run(path):
            _add_run(seen, path)
        elif path.is_file() and not _of_study(path):
            _add_records(seen, path)
        else:
            _add_study(seen, path if path.is_dir() else path.parent)
    if not seen.records:
        raise MissingDataError(
            f"{', '.join(p.name for p in paths)}: no round is finished, so there is nothing to "
            "report yet"
        )
    facts = _joined(seen, against)
    names = tuple(p.name for p in paths)
    notes = (*seen.notes, *(line for game in facts.games for line in unmoved(facts, game)))
    return Material(facts, tuple(seen.runs), tuple(seen.behaviours), names, notes)


def _is_run(path: Path) -> bool:
    return (path / PLAN).is_file()


def _of_study(path: Path) -> bool:
    return path.name == RECORDS and (path.parent / STUDY).is_file()


def _add_study(seen: _Gathering, folder: Path) -> None:
    facts = read_study(folder)  # tells well what it holds instead
    _know(seen, facts.meta)
    seen.tell(facts.meta)
    given = [r for r in facts.records if r["method"] != BASE]
    seen.add(given, (r for r in facts.kernels if r["method"] != BASE))
    seen.behaviours += found_beside(folder, folder.name, seen.notes)
    for cell in dict.fromkeys(map(_cell, given)):
        if _is_run(place := cell.folder(folder)):
            _add_cell_run(seen, cell, place)
    _tell_missing(seen, facts.meta)


def _know(seen: _Gathering, meta: Mapping[str, Any]) -> None:
    """Games and methods in the order of the study that records are of, where they say so."""
    study = meta.get("study")
    for part, known in (("environments", seen.games), ("methods", seen.methods)):
        told = study.get(part) if isinstance(study, Mapping) else None
        for name, settings in told.items() if isinstance(told, Mapping) else ():
            known.setdefault(str(name), settings)


def _tell_missing(seen: _Gathering, meta: Mapping[str, Any]) -> None:
    """Cells of a study that its records lack."""
    failed = meta.get("failed") or {}
    missing = [cell for cell in meta.get("unfinished", ()) if cell not in failed]
    if missing:
        named = ", ".join(missing[:_NAMED]) + (" …" if len(missing) > _NAMED else "")
        cells = "1 cell is" if len(missing) == 1 else f"{len(missing)} cells are"
        seen.notes.append(f"{cells} not finished and left out: {named}")
    for cell, why in failed.items():
        seen.notes.append(f"{cell} is left out: {(why.splitlines() or ['it failed'])[0]}")


def _add_cell_run(seen: _Gathering, cell: Cell, place: Path) -> None:
    """What only the run folder of a finished cell has: its transcripts and metrics."""
    try:
        run = read_run(place)
    except ConfigError as error:  # a plan of another version: the records need none
        seen.notes.append(f"{cell}: its run folder is left unread: {error}")
        return
    seen.runs.append(CellRun(cell, run))
    seen.behaviours += found_beside(place, str(cell), seen.notes)


def _add_records(seen: _Gathering, path: Path) -> None:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        meta, rows = dict(told.get("meta") or {}), list(told["records"])
        rows = [{"method": r.get("method", r.get("arm")), **r} for r in rows]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is no file of records ({error}); it should hold "
            '{"meta": {...}, "records": [flat rows]}'
        ) from error
    for i, row in enumerate(rows):
        _check_record(path, i, row)
    _know(seen, meta)
    seen.tell(meta)
    kernels = _kernels_beside(path)
    seen.add(rows, kernels or ({**_measured(r), "kernel": ALL_KERNELS} for r in rows))
    for row in rows:
        if row["method"] not in (BASE, *_YARDSTICKS):
            seen.methods.setdefault(row["method"], {})
    seen.behaviours += found_beside(path.parent, path.stem, seen.notes)
    _tell_missing(seen, meta)
    if not kernels:
        seen.notes.append(
            f"{path.name} does not tell kernels apart: differences in it are paired by seed"
        )


def _kernels_beside(path: Path) -> Rows:
    """Of ``name.json`` those of ``name-kernels.parquet``; nothing where there is none."""
    beside = path.with_name(f"{path.stem}-{KERNELS}")
    try:
        return read_kernels(beside) if beside.is_file() else []
    except ValueError as error:
        raise DataError(f"{beside} holds no means by kernel ({error}); remove it") from error


def _check_record(path: Path, i: int, row: Mapping[str, Any]) -> None:
    """What the tables rely on; all else may be missing."""
    missing = [k for k in (*_KEYS, "method") if row.get(k) is None]
    numbers = [k for k in (*_MEASURES, "J_star", "J_se") if row.get(k) is not None]
    wrong = [k for k in numbers if not _is_number(row[k])]
    wrong += [k for k in ("seed", "round") if k not in missing and not isinstance(row[k], int)]
    wrong += [k for k in ("game", "method", "split") if not isinstance(row.get(k, ""), str)]
    if missing or wrong:
        found = [f"lacks {k}" for k in missing] + [f"{k} is {row[k]!r}" for k in wrong]
        raise DataError(
            f"{path}: record {i} {', '.join(found)[:200]}; needed are finite numbers and "
            f"{', '.join(_KEYS)} and method (or arm)"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _measured(row: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("game", "method", "seed", "round", "split")
    return {k: row[k] for k in kept} | {k: row.get(k) for k in _MEASURES}


def _add_run(seen: _Gathering, folder: Path) -> None:
    run = read_run(folder)
    plan = run.plan
    if not run.rounds:
        seen.notes.append(f"{folder.name} is left out: no round of it is finished")
        return
    game = _numbered(seen, f"game {plan.environment.name}", _where(plan))
    control = "-shuffled" if plan.q.shuffle_returns else ""
    method = _numbered(seen, f"method {plan.method.name}{control}", _how(plan))
    cell = Cell(game, method, plan.seed)
    known = {_cell(r): r["plan"] for r in seen.records}
    if known.get(cell) != plan.identity()[:12] or any(cell == r.cell for r in seen.runs):
        if cell in known:
            raise ConfigError(
                f"{folder.name} is {cell}, and so is another source with other numbers; give "
                "each once, or make a report of each"
            )
        seen.methods.setdefault(method, {"q": {"shuffle_returns": bool(control)}})
        found = run_records(folder, cell)
        seen.add(found["records"], found["kernels"])
    if run.best_round is None:
        seen.notes.append(f"{folder.name} has not ended, so none of its rounds is chosen yet")
    seen.runs.append(CellRun(cell, run))
    seen.behaviours += found_beside(folder, str(cell), seen.notes)


def _numbered(seen: _Gathering, name: str, settings: Any) -> str:
    """Runs of other settings are no seeds of the same thing, so they get a number of their own."""
    kinds = seen.kinds.setdefault(name, [])
    key = json.dumps(settings, sort_keys=True, default=str)
    if key not in kinds:
        kinds.append(key)
    i = kinds.index(key)
    label = name.partition(" ")[2]
    return label if i == 0 else f"{label}-{i + 1}"


def _where(plan: Plan) -> Any:
    """What has to be the same for runs to be of one game."""
    told = without_places(dump(plan))
    parts = [told[k] for k in ("environment", "partner", "heldout")]
    return [*parts, plan.collect.data_seed, plan.q.gamma]


def _how(plan: Plan) -> Any:
    """What has to be the same for runs to be of one method, but for the seed."""
    told = without_places(dump(plan))
    for key in ("name", "seed", "environment", "partner", "heldout"):
        told.pop(key)
    for part in ("q", "improve"):
        told[part].pop("seed", None)
    return told


def _joined(seen: _Gathering, against: str | None) -> StudyFacts:
    methods = list(seen.methods)
    reference = against if against in methods else seen.meta.get("reference") or methods[0]
    own = [r for r in seen.records if r["method"] != BASE]
    records = with_base(own, reference)
    made = {(r["game"], r["seed"]) for r in records if r["method"] == BASE}
    given = [r for r in seen.records if r["method"] == BASE and (r["game"], r["seed"]) not in made]
    # Records of base alone were given where the reference's rounds were not.
    kernels = [
        *(k for k in seen.kernels if k["method"] != BASE or (k["game"], k["seed"]) not in made),
        *as_base([k for k in seen.kernels if k["method"] != BASE], reference),
    ]
    meta = {
        **seen.meta,
        "study": {"environments": seen.games, "methods": seen.methods},
        "reference": reference,
    }
    rows = (*records, *given)
    coarse = {k["game"] for k in kernels if k["kernel"] == ALL_KERNELS}
    if coarse:  # what one source doesn't tell apart can't be paired with what another does
        kernels = [k for k in kernels if k["game"] not in coarse]
        kernels += [{**_measured(r), "kernel": ALL_KERNELS} for r in rows if r["game"] in coarse]
    facts = StudyFacts(Path(), meta, rows, tuple(kernels))
    players = {r["method"] for r in facts.records}
    if against is not None and against not in players:
        raise ConfigError(
            f"nobody here is called {against!r}; accepted: {', '.join(sorted(players))}"
        )
    return facts


def _cell(row: Mapping[str, Any]) -> Cell:
    return Cell(row["game"], row["method"], row["seed"])
