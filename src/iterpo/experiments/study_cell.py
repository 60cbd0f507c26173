"""One cell of a study in a process of its own: ``python -m iterpo.experiments.study_cell``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import cast

from iterpo import environments
from iterpo.collect import collect, seats
from iterpo.domain import Split
from iterpo.experiments import phases
from iterpo.experiments.events import Event, Report
from iterpo.experiments.kernels import draw_scenarios
from iterpo.experiments.ledger import PLAN
from iterpo.experiments.loop import run
from iterpo.experiments.plan import Plan
from iterpo.experiments.records import run_records, write_records, yardstick_records
from iterpo.experiments.shared_batch import FIRST, ORIGIN, take_batch
from iterpo.experiments.speakers import Yardstick, YardstickName, partner_of, seat
from iterpo.experiments.study import Cell, load_study
from iterpo.experiments.versions import keep_versions

__all__ = ["STUDY", "main", "play_cell", "play_yardstick"]

STUDY = "study.yaml"
"""The study as it is run, in its folder."""


def play_cell(plan: Plan, folder: Path, cell: Cell, source: Path | None, report: Report) -> None:
    """All rounds of a run, or those that are missing; its phases in this process.

    Args:
        plan: The cell's.
        folder: Its run folder.
        cell: Which one.
        source: Run whose round-0 batch is also this one's; None: it is collected here.
        report: Receives events.
    """

    def execute(place: Path, key: str, _lock: int, tell: Report) -> None:
        if key == FIRST and source is not None:
            tell(Event("note", key, text=f"takes the batch of {source}"))
            take_batch(source, place)
            return
        if key == FIRST:
            (place / ORIGIN).unlink(missing_ok=True)  # of an attempt that was killed
        phases.execute(place, key, tell)

    run(plan, folder, resume=(folder / PLAN).exists(), report=report, execute=execute)
    write_records(folder, plan, run_records(folder, cell))


def play_yardstick(plan: Plan, folder: Path, cell: Cell, report: Report) -> None:
    """A fixed agent on the kernels of a plan's round 0, against the same partners."""
    begun = time.monotonic()
    env = environments.make(plan.environment.name, **plan.environment.options)
    agent = Yardstick(cast(YardstickName, cell.method))
    seating = seat(env, agent, partner_of(plan.partner), gamma=plan.q.gamma)
    logs = {}
    for split in Split:
        per = plan.collect.per_scenario if split is Split.TRAIN else plan.heldout.per_scenario
        places = seats(draw_scenarios(env, plan, split, 0), per, round=0, seed=plan.seed)
        logs[split] = collect(seating.table, places, j_star=seating.j_star)
        report(Event("progress", str(cell), split.value, len(places), len(places)))
    write_records(folder, plan, yardstick_records(cell, plan, logs, time.monotonic() - begun))
    keep_versions(folder, plan, begun=False)


def main(arguments: list[str]) -> int:
    """Entry of a cell's process: STUDY_FOLDER ENVIRONMENT METHOD SEED SOURCE EVENT_FD."""
    place, cell = Path(arguments[0]), Cell(arguments[1], arguments[2], int(arguments[3]))
    source = Path(arguments[4]) if arguments[4] else None  # empty: collect the first batch here
    folder = cell.folder(place)

    def work(report: Report) -> None:
        plan = load_study(place / STUDY).plan_of_cell(cell)
        if cell.is_yardstick:
            play_yardstick(plan, folder, cell, report)
        else:
            play_cell(plan, folder, cell, source, report)

    return phases.as_child(folder, int(arguments[5]), work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
