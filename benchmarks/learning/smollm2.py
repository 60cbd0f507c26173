"""Improvement with SmolLM2-135M: Ultimatum and Deal or No Deal from a scripted warm start.

    python benchmarks/learning/smollm2.py --seeds 3 --threads 2
    python benchmarks/learning/smollm2.py --transcripts 5

The bare model never closes a deal (zero_shot.py), so pi_0 is an adapter that learnt from scripted
dialogues (warm_start.py). It is made once, kept in a folder named after its settings, and shared by
all games, arms and seeds. Arms: `iterpo` and `shuffled-returns` (returns permuted before Q is
fitted: a gain that survives this is not Q's), and the yardsticks `base` (pi_0 of the iterpo run),
`first-counter` and `oracle`. A cell is a process; finished cells are looked up, a stopped one goes
on from its last finished phase, and the records are written after every cell. `--transcripts N`
plays nothing: it writes N held-out conversations a cell before and after, side by side, to read.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from before_and_after import side_by_side
from cells import (
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
    rows_of,
    summarise,
    versions,
    with_regret,
    write_records,
)
from warm_start import WarmStart, make
from yardsticks import YARDSTICKS, yardstick_rows

from iterpo.artifacts import is_sealed, open_sealed, write_atomic
from iterpo.experiments.plan import Plan

PLAN = Path(__file__).with_name("smollm2.yaml")
GAMES: dict[str, list[str]] = {
    "ultimatum": [],
    # Prompts are twice as long here, and so are boxes.
    "deal_or_no_deal": [
        *("collect.sampling.max_new_tokens=64", "improve.sampling.max_new_tokens=64"),
        *("collect.scenarios=24", "heldout.scenarios=16"),
    ],
}
ARMS: dict[str, list[str]] = {
    "iterpo": [],
    "shuffled-returns": ["q.shuffle_returns=true"],
}


def plan_of(cell: Cell, options: argparse.Namespace, pi_0: Path | None = None) -> Plan:
    """The plan of one cell; yardsticks have no settings of their own."""
    game, arm, seed = cell
    start = [] if pi_0 is None else [f"policy.model={pi_0}"]
    threads = f"policy.threads={options.threads}"
    settings = [*GAMES[game], *ARMS.get(arm, []), threads]
    return cell_plan(PLAN, game, settings, seed, [*options.extra, *start])


def warm_start(options: argparse.Namespace) -> tuple[WarmStart, Path]:
    """Settings of the warm start, and the folder that it has or will have."""
    plan = plan_of(("ultimatum", "iterpo", 0), options)
    model, dtype, lora = plan.policy.model, plan.policy.dtype, plan.improve.lora
    settings = WarmStart(model, dtype, options.threads, lora, dialogues=options.dialogues)
    return settings, (options.out / settings.name).resolve()


def make_warm_start(options: argparse.Namespace, more: list[str]) -> None:
    """In a process of its own, so that this one needs no torch."""
    _, folder = warm_start(options)
    if is_sealed(folder):
        return
    print(f"making the warm start {folder.name}", flush=True)
    command = [sys.executable, __file__, "--warm-start", "--out", str(options.out), *more]
    for setting in options.extra:
        command += ["--set", setting]
    subprocess.run(command, check=True)


def write(
    cells: list[Cell], played: dict[Cell, list[dict[str, Any]]], options: argparse.Namespace
) -> None:
    """Records of all that is finished, and of the yardsticks that were played."""
    settings, folder = warm_start(options)
    records: list[dict[str, Any]] = []
    for cell in cells:
        if cell in played:
            records += played[cell]
        elif finished(options.out, cell, plan_of(cell, options, folder)):
            records += rows_of(folder_of(options.out, cell), cell)
    made = json.loads(folder.with_suffix(".json").read_text())
    plan = plan_of(("ultimatum", "iterpo", 0), options)  # names no folder of this machine
    meta = {
        "versions": versions(),
        "plan": plan.as_dict(),
        "plan_hash": plan.identity(),
        "games": {g: GAMES[g] for g in options.games},
        "arms": {a: ARMS[a] for a in options.arms if a in ARMS},
        "settings": options.extra,
        "warm_start": {
            "name": settings.name,
            "adapter_sha256": open_sealed(folder)["facts"]["adapter_sha256"],
            **made,
        },
        "machine": machine(f"{options.threads} threads"),
    }
    write_records(options.results, meta, with_regret(records))


def write_transcripts(cells: list[Cell], options: argparse.Namespace) -> None:
    """Side by side, for every finished cell of the arms that learn."""
    pi_0 = warm_start(options)[1]
    learnt = [c for c in cells if c[1] in ARMS]
    done = [c for c in learnt if finished(options.out, c, plan_of(c, options, pi_0))]
    parts = [side_by_side(folder_of(options.out, c), c, options.transcripts) for c in done]
    path = options.out / "transcripts.md"
    title = "# SmolLM2-135M before and after\n\nA: the agent. P: the scripted partner.\n"
    write_atomic(path, "\n".join([title, *parts]) + "\n")
    print(f"{len(done)} cells: {path}")


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--games", nargs="+", default=list(GAMES), choices=list(GAMES))
    parser.add_argument("--arms", nargs="+", default=[*ARMS, *YARDSTICKS])
    parser.add_argument("--jobs", type=int, default=1, help="cells side by side")
    parser.add_argument("--threads", type=int, default=2, help="of a cell; they change rounding")
    parser.add_argument("--dialogues", type=int, default=240, help="of the warm start, a game")
    parser.add_argument("--warm-start", action="store_true", help="make it, then stop")
    parser.add_argument("--transcripts", type=int, metavar="N", help="write N a cell, then stop")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "improvement-smollm2")
    add_cell_options(parser, "improvement-smollm2")
    options = parser.parse_args()
    more = ["--threads", str(options.threads), "--dialogues", str(options.dialogues)]
    settings, pi_0 = warm_start(options)
    if options.warm_start:
        if not is_sealed(pi_0):
            make(settings, pi_0)
        return
    if options.cell:
        game, arm, seed = options.cell
        cell = (game, arm, int(seed))
        play_here(plan_of(cell, options, pi_0), folder_of(options.out, cell))
        return
    cells = cells_of(options)
    if options.transcripts:
        write_transcripts(cells, options)
        return
    make_warm_start(options, more)
    fixed = [c for c in cells if c[1] in YARDSTICKS]
    played = {c: yardstick_rows(plan_of(c, options), c) for c in fixed}
    write(cells, played, options)
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = [c for c in cells if c[1] in ARMS]
        failed = 0
        for succeeded in pool.map(lambda cell: launch(__file__, cell, options, more), runs):
            failed += not succeeded
            write(cells, played, options)
    print(summarise(json.loads(options.results.read_text())["records"]))
    if failed:
        raise SystemExit(f"{failed} cells failed; the same command goes on with them")


if __name__ == "__main__":
    main()
