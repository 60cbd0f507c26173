"""run_study: the cells of a study side by side, each in a process; finished ones are looked up."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from iterpo.artifacts import is_sealed, write_atomic
from iterpo.config import canonical_yaml
from iterpo.errors import ResumeError
from iterpo.experiments.events import Event, Report, ignore
from iterpo.experiments.ledger import PLAN, difference, has_work, hold
from iterpo.experiments.plan import Plan, load_plan
from iterpo.experiments.processes import Child
from iterpo.experiments.shared_batch import FIRST, batch_key
from iterpo.experiments.study import Cell, Study
from iterpo.experiments.study_cell import STUDY
from iterpo.experiments.study_records import Gathered
from iterpo.experiments.versions import changed, joined, plugins, present

__all__ = ["StudyResult", "run_study", "start_cell"]

_POLL_S = 0.5
_TELL_S = 60.0
_OURS = {STUDY, ".lock", f".{STUDY}.part"}

Start = Callable[[Path, Cell, Path | None], Child]
"""Starts a cell: (study folder, cell, run to take the round-0 batch of)."""


@dataclass(frozen=True, slots=True)
class StudyResult:
    """What a study came to."""

    folder: Path
    """Study folder, with records.json and kernels.parquet."""
    cells: int
    """All cells, fixed agents included."""
    failed: Mapping[Cell, str]
    """Cells that did not finish, and why."""


def start_cell(folder: Path, cell: Cell, source: Path | None) -> Child:
    """A process that plays a cell; its log lies beside the run folder."""
    arguments = [str(folder), cell.environment, cell.method, str(cell.seed), str(source or "")]
    log = cell.folder(folder).with_suffix(".log")
    return Child("iterpo.experiments.study_cell", arguments, log)


def run_study(
    study: Study,
    folder: Path,
    *,
    jobs: int = 1,
    report: Report = ignore,
    start: Start = start_cell,
) -> StudyResult:
    """Run what is missing of a study; the same call goes on after a kill, or with more cells.

    A cell that fails is told and does not stop the others.

    Args:
        study: What to run.
        folder: Study folder; new, or one of a study that has cells in common.
        jobs: Cells side by side, each a process.
        report: Receives events: starts and ends of cells, and how far all have come.
        start: How a cell is started.

    Raises:
        ResumeError: if the folder is in use, holds other things, or a cell of another plan.
    """
    if folder.exists() and not (folder / STUDY).exists():
        foreign = [p.name for p in folder.iterdir() if p.name not in _OURS]
        if foreign:
            raise ResumeError(f"{folder} is not empty and holds no study. Name another with --out.")
    plans = study.plans()
    with hold(folder):
        _refuse_other_plans(folder, plans)
        write_atomic(folder / STUDY, canonical_yaml(study))
        known = Gathered(study, folder, plans, jobs)
        known.look()
        board = _Board(folder, plans, report, known)
        if told := _other_versions(known, goes_on=bool(board.waiting)):
            report(Event("note", "study", text=told))
        known.write({})
        board.tell(0)
        with _children() as running:
            _work(board, running, jobs, start)
    return StudyResult(folder, len(plans), board.failed)


def _other_versions(known: Gathered, *, goes_on: bool) -> str:
    """A warning where finished cells were made with others.

    If no cell is left, plug-ins alone count: who has mended a method expects other numbers.
    """
    made = joined(known.versions())
    plans = (known.plans[cell] for cell in known.found)
    each = {(p.method.name, p.environment.name): p for p in plans}  # many cells, few packages
    here = joined(map(present if goes_on else plugins, each.values()))
    if not goes_on:
        made = {name: told for name, told in made.items() if name in here}
    return changed(made, here, goes_on=goes_on)


@dataclass(slots=True)
class _Board:
    """Which cells are waiting, finished and failed, and how fast it goes."""

    folder: Path
    plans: Mapping[Cell, Plan]
    report: Report
    known: Gathered
    failed: dict[Cell, str] = field(default_factory=dict)
    waiting: list[Cell] = field(init=False)
    keys: dict[Cell, str] = field(init=False)
    phases: dict[Cell, set[str]] = field(default_factory=dict)
    skipped: int = 0
    begun: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.waiting = [cell for cell in self.plans if cell not in self.known.found]
        self.keys = {c: batch_key(p) for c, p in self.plans.items() if not c.is_yardstick}

    def ready(self, running: Mapping[Cell, Child]) -> tuple[Cell, Path | None] | None:
        """A cell that can start, and the run that has its round-0 batch already.

        While one cell collects a batch, the others that share it wait; those of other seeds and
        games can start meanwhile.
        """
        for cell in self.waiting:
            if cell.is_yardstick or is_sealed(cell.folder(self.folder) / FIRST):
                return cell, None
            kin = [c for c, key in self.keys.items() if key == self.keys[cell] and c != cell]
            places = [c.folder(self.folder) for c in kin]
            if done := [p for p in places if is_sealed(p / FIRST)]:
                return cell, done[0]
            if not any(c in running for c in kin):
                return cell, None
        return None

    def hear(self, cell: Cell, event: Event) -> None:
        """What a cell tells: its phases, for the estimate of the time left."""
        if event.kind == "skipped":
            self.skipped += 1
        elif event.kind == "finished":
            self.phases.setdefault(cell, set()).add(event.key)
        elif event.kind == "note":
            self.report(Event("note", str(cell), text=event.text))

    def tell(self, running: int) -> None:
        """How far it is, and about how long it will take."""
        facts: dict[str, float] = {"running": running, "cells_failed": len(self.failed)}
        worked = sum(map(len, self.phases.values())) - self.skipped
        if worked > 0:
            open_cells = [
                c for c in self.keys if c not in self.known.found and c not in self.failed
            ]
            todo = sum(
                2 * self.plans[c].rounds + 2 - len(self.phases.get(c, ())) for c in open_cells
            )
            facts["minutes_left"] = todo / worked * (time.monotonic() - self.begun) / 60
        self.report(Event("progress", "cells", "", len(self.known.found), len(self.plans), facts))


def _work(board: _Board, running: dict[Cell, Child], jobs: int, start: Start) -> None:
    """Keep ``jobs`` cells running until none is left."""
    said = time.monotonic()
    with selectors.DefaultSelector() as selector:
        while board.waiting or running:
            while len(running) < jobs and (found := board.ready(running)) is not None:
                cell, source = found
                board.waiting.remove(cell)
                running[cell] = start(board.folder, cell, source)
                selector.register(running[cell], selectors.EVENT_READ, cell)
                board.report(Event("started", str(cell)))
            for key, _ in selector.select(_POLL_S):
                cell, child = key.data, running[key.data]
                events = child.read()
                for event in events or ():
                    board.hear(cell, event)
                if events is None:
                    selector.unregister(child)
                    _end(board, cell, running.pop(cell))
                    board.tell(len(running))
            if time.monotonic() - said > _TELL_S:
                said = time.monotonic()
                board.tell(len(running))


def _end(board: _Board, cell: Cell, child: Child) -> None:
    with child:
        code = child.wait()
    board.known.look()
    if cell in board.known.found:
        board.report(Event("finished", str(cell)))
        board.report(Event("note", str(cell), text="finished"))
    else:
        why = child.explain(f"cell {cell}", "once its cause is mended, run the same command again")
        board.failed[cell] = why
        board.report(Event("note", str(cell), text=f"FAILED ({code}): {why.splitlines()[0]}"))
    board.known.write(board.failed)


@contextmanager
def _children() -> Iterator[dict[Cell, Child]]:
    """Running cells; they end when the block does, whatever ends it."""
    running: dict[Cell, Child] = {}
    try:
        yield running
    finally:
        for child in running.values():
            child.close()


def _refuse_other_plans(folder: Path, plans: Mapping[Cell, Plan]) -> None:
    """A cell's folder may only go on with the plan that it was begun with."""
    begun = {
        cell: load_plan(place / PLAN) for cell in plans if has_work(place := cell.folder(folder))
    }
    other = [c for c, plan in begun.items() if plan.identity() != plans[c].identity()]
    if other:
        lines = difference(begun[other[0]], plans[other[0]])
        raise ResumeError(
            f"{len(other)} cells in {folder} were begun with other settings: "
            f"{', '.join(map(str, other[:5]))}{' …' if len(other) > 5 else ''}. "
            f"What differs in the first (there -> given): {'; '.join(lines[:5])}"
            f"{' …' if len(lines) > 5 else ''}. Delete their folders, or choose another folder "
            "with --out."
        )
