"""Improvement with nano: games x seeds x arms, each against its controls, one resumable command.

    python benchmarks/learning/improvement.py --seeds 5 --jobs 2

Arms: `iterpo` (improvement.yaml), `paper-recipe` (the paper's plain Q, sampling and step size,
which is one for a 7B model and hardly moves nano), `paper-recipe-our-steps` (the same with ours),
`shuffled-returns` (returns permuted before Q is fitted: a gain that survives this is not Q's),
`simulated-q` (candidates valued by playing on: what an exact Q would do), and the yardsticks `base`
(pi_0 of the iterpo run), `first-counter` and `oracle`. A cell is a process; finished cells are
looked up, a stopped one goes on from its last finished phase, and the records are written after
every cell. `--ablations` runs the arms of ablations.py on two games and two rounds instead.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import simulated_q  # registers the arm's method
from ablations import ABLATIONS, GUARDS_OFF, PAPER, ROUNDS
from ablations import GAMES as ABLATION_GAMES
from bars import report
from cells import (
    GAMES,
    ROOT,
    Cell,
    add_cell_options,
    cell_plan,
    cells_of,
    finished,
    folder_of,
    launch,
    machine,
    play_here,
    records_by_cell,
    rows_of,
    summarise,
    versions,
    with_regret,
    write_records,
)
from yardsticks import YARDSTICKS, yardstick_rows

from iterpo.experiments.plan import Plan

PLAN = Path(__file__).with_name("improvement.yaml")
ARMS: dict[str, list[str]] = {
    "iterpo": [],
    "paper-recipe": PAPER,
    "paper-recipe-our-steps": GUARDS_OFF["paper-recipe-our-steps"],
    "shuffled-returns": ["q.shuffle_returns=true"],
    "simulated-q": ["method.name=simulated_q", "q.judge_fraction=0"],
}


def plan_of(game: str, arm: str, seed: int, extra: Iterable[str] = ()) -> Plan:
    """The plan of one cell; yardsticks have no settings of their own."""
    return cell_plan(PLAN, game, (ARMS | ABLATIONS).get(arm, []), seed, extra)


def _ask_for_ablations(options: argparse.Namespace, usual: Callable[[str], Any]) -> None:
    if options.arms == usual("arms"):
        options.arms = ["iterpo", *ABLATIONS]
    options.games = [g for g in options.games if g in ABLATION_GAMES]
    options.extra = [ROUNDS, *options.extra]
    for name, place in (("out", "ablations"), ("results", "ablations-nano.json")):
        if getattr(options, name) == usual(name):
            setattr(options, name, usual(name).with_name(place))


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--games", nargs="+", default=list(GAMES), choices=list(GAMES))
    parser.add_argument("--arms", nargs="+", default=[*ARMS, *YARDSTICKS])
    parser.add_argument("--jobs", type=int, default=2, help="cells side by side, one core each")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "improvement")
    parser.add_argument("--ablations", action="store_true", help="the arms of ablations.py instead")
    add_cell_options(parser, "improvement-nano")
    options = parser.parse_args()
    if options.ablations:
        _ask_for_ablations(options, parser.get_default)
    if options.cell:
        game, arm, seed = options.cell
        cell = (game, arm, int(seed))
        play_here(plan_of(*cell, options.extra), folder_of(options.out, cell))
        return
    cells = cells_of(options)

    def planned(cell: Cell) -> Plan:
        return plan_of(*cell, options.extra)

    plan = planned(("ultimatum", "iterpo", 0))
    played = records_by_cell(options.results, planned)

    def write() -> None:
        for cell in cells:
            if cell not in played and finished(options.out, cell, planned(cell)):
                played[cell] = rows_of(folder_of(options.out, cell), cell)
        records = [row for rows in played.values() for row in rows]
        meta = {
            "versions": versions(),
            "plan": plan.as_dict(),
            "plan_hash": plan.identity(),
            "arms": ABLATIONS if options.ablations else ARMS,
            "settings": options.extra,
            "simulated_continuations": simulated_q.CONTINUATIONS,
            "machine": machine("one core"),
        }
        write_records(options.results, meta, with_regret(records))

    write()
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = [c for c in cells if c[1] not in YARDSTICKS and c not in played]
        done = pool.map(lambda cell: launch(__file__, cell, options), runs)
        for cell in cells:  # here, while the cells run in processes of their own
            if cell[1] in YARDSTICKS and cell not in played:
                played[cell] = yardstick_rows(planned(cell), cell)
        failed = 0
        for succeeded in done:
            failed += not succeeded
            write()
    write()
    records = json.loads(options.results.read_text())["records"]
    print(summarise(records))
    print(report(records))
    if failed:
        raise SystemExit(f"{failed} cells failed; the same command goes on with them")


if __name__ == "__main__":
    main()
