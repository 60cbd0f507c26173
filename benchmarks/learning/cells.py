"""Cells of a benchmark of learning: a game, an arm and a seed; their plans and their records."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from iterpo.artifacts import write_atomic
from iterpo.domain import Conversation, Split
from iterpo.experiments import phases
from iterpo.experiments.ledger import PLAN
from iterpo.experiments.loop import RESULT, run
from iterpo.experiments.plan import Plan, load_plan
from iterpo.measure.compare import compare
from iterpo.store import read_conversations

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
KEYS = ("J_agent_turn", "J_message", "agreement", "turns", "reward")
Cell = tuple[str, str, int]
"""Game, arm and seed."""


def cell_plan(
    path: Path, game: str, arm: Iterable[str], seed: int, extra: Iterable[str] = ()
) -> Plan:
    """The plan of one cell; the seed changes every draw, the kernels stay."""
    seeds = [f"seed={seed}", f"q.seed={seed}", f"improve.seed={seed}"]
    return load_plan(path, [f"environment.name={game}", *GAMES[game], *arm, *seeds, *extra])


def add_cell_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Where cells and records go, and which cells: alike in every benchmark of cells."""
    results = ROOT / "benchmarks" / "results" / f"{name}.json"
    parser.add_argument("--first-seed", type=int, default=3)
    parser.add_argument("--results", type=Path, default=results)
    parser.add_argument("--set", action="append", default=[], dest="extra", metavar="a.b=c")
    parser.add_argument("--cell", nargs=3, metavar=("GAME", "ARM", "SEED"), help="used by itself")


def cells_of(options: argparse.Namespace) -> list[Cell]:
    """All cells that were asked for, seed by seed."""
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    return [(g, a, s) for s in seeds for g in options.games for a in options.arms]


def folder_of(out: Path, cell: Cell) -> Path:
    """Run folder of a cell."""
    return out / "-".join(map(str, cell))


def finished(out: Path, cell: Cell, plan: Plan) -> bool:
    """Whether all rounds of a cell are done, by this very plan."""
    folder = folder_of(out, cell)
    return (folder / RESULT).exists() and load_plan(folder / PLAN).identity() == plan.identity()


def play_here(plan: Plan, folder: Path) -> None:
    """All rounds of a cell, its phases in this process: torch is loaded once."""
    begun = (folder / PLAN).exists()
    run(
        plan,
        folder,
        resume=begun,
        execute=lambda place, key, _lock, report: phases.execute(place, key, report),
    )


def launch(script: str, cell: Cell, options: argparse.Namespace, more: Iterable[str] = ()) -> bool:
    """Play a cell, or go on with it, by the ``--cell`` of a script; its log lies beside it.

    Returns:
        Whether it came to its end.
    """
    command = [sys.executable, script, "--cell", *map(str, cell), "--out", str(options.out), *more]
    for setting in options.extra:
        command += ["--set", setting]
    log = folder_of(options.out, cell).with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        code = subprocess.run(command, stdout=sink, stderr=sink, check=False).returncode
    print("finished" if code == 0 else f"FAILED ({code}, see {log})", *cell, flush=True)
    return code == 0


def machine(cores_a_run: str) -> str:
    """Where it ran."""
    return f"{platform.machine()}, {os.cpu_count()} cores, {cores_a_run} a run"


def versions() -> dict[str, str]:
    """Of all packages that have a say in learning."""
    return {n: version(n) for n in ("iterpo", "torch", "transformers", "trl", "peft")}


def write_records(
    path: Path, meta: Mapping[str, Any], records: Sequence[Mapping[str, Any]]
) -> None:
    """All that is known so far, at once."""
    write_atomic(path, json.dumps({"meta": meta, "records": records}, indent=1) + "\n")


def records_by_cell(
    path: Path, plan_of: Callable[[Cell], Plan]
) -> dict[Cell, list[dict[str, Any]]]:
    """What a file of records holds of the same plans, so that run folders need not be kept."""
    found: dict[Cell, list[dict[str, Any]]] = {}
    for row in json.loads(path.read_text())["records"] if path.exists() else ():
        found.setdefault((row["game"], row["arm"], row["seed"]), []).append(row)
    return {
        cell: rows
        for cell, rows in found.items()
        if cell[1] != "base" and rows[0]["plan"] == short(plan_of(cell))
    }


def short(plan: Plan) -> str:
    """Which plan a record is of."""
    return plan.identity()[:12]


def mean_se(values: Sequence[float]) -> str:
    """A mean over seeds and its standard error."""
    se = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{statistics.fmean(values):+.3f} ± {se:.3f}"


def rows_of(folder: Path, cell: Cell) -> list[dict[str, Any]]:
    """Flat records of a finished run."""
    result = json.loads((folder / RESULT).read_text())
    plan = short(load_plan(folder / PLAN))
    timings = [json.loads(t) for t in (folder / "timings.jsonl").read_text().splitlines()]
    game, arm, seed = cell
    rows = []
    first = {s: read_conversations(folder / "round-0" / "deploy" / s.value) for s in Split}
    for i, facts in enumerate(result["rounds"]):
        made = _made(folder / f"round-{i - 1}" / "update") if i else {}
        wall = sum(t["wall_s"] for t in timings if t["phase"].startswith(f"round-{i}/"))
        for split in Split:
            row = {"game": game, "arm": arm, "seed": seed, "round": i, "split": split.value}
            row |= {"selected": i == result["best_round"], **measured(facts[split.value])}
            row |= {"gain_se": _gain_se(folder, i, split, first[split]), **made}
            rows.append({**row, "wall_s": round(wall, 1), "plan": plan})
    return rows


def _gain_se(folder: Path, i: int, split: Split, first: Sequence[Conversation]) -> float:
    """Standard error of the gain over round 0, paired by kernel; of this run's conversations."""
    if i == 0:
        return 0.0
    now = read_conversations(folder / f"round-{i}" / "deploy" / split.value)
    return compare(now, first).J_agent_turn.se


def measured(facts: dict[str, Any]) -> dict[str, Any]:
    """What a record tells of a measurement."""
    j = {"J_se": facts["J_agent_turn"]["se"], "J_star": facts["j_star_agent_turn"]["mean"]}
    return {k: facts[k]["mean"] for k in KEYS} | j


def _made(update: Path) -> dict[str, Any]:
    """How the update that made a round's policy went."""
    facts = json.loads((update / "manifest.json").read_text())["facts"]
    lines = (update / "metrics" / "improve-metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])["values"]
    evidence = facts.get("evidence", {})
    gains = {k: (evidence.get(k) or {}).get("mean") for k in ("q_gain", "judge_gain")}
    return {
        "q_train": gains["q_gain"],
        "q_judge": gains["judge_gain"],
        "kl": evidence.get("kl", last.get("kl")),
        "entropy": last.get("entropy"),
        "length": last.get("completion_tokens"),
        "verdict": facts.get("verdict"),
    }


def with_regret(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds the arm `base`, and to each row the gain and the share of the regret that it closes.

    Both count from round 0 of the same arm and seed, since an arm that samples otherwise starts
    elsewhere; fixed agents are compared with `base`, round 0 of `iterpo`.
    """
    rounds0 = [r for r in records if r["arm"] == "iterpo" and r["round"] == 0]
    base = [{**r, "arm": "base", "selected": True} for r in rounds0]
    learning = {r["arm"] for r in records if r["round"] > 0}
    starts = {
        (r["game"], r["arm"], r["seed"], r["split"]): r["J_agent_turn"]
        for r in [*records, *base]
        if r["round"] == 0
    }
    out = []
    for row in [*records, *base]:
        arm = row["arm"] if row["arm"] in learning else "base"
        j0 = starts.get((row["game"], arm, row["seed"], row["split"]))
        gain = None if j0 is None else row["J_agent_turn"] - j0
        room = None if j0 is None else row["J_star"] - j0
        closed = gain / room if gain is not None and room else None
        out.append({**row, "gain": gain, "regret_closed": closed})
    return sorted(out, key=lambda r: (r["game"], r["arm"], r["seed"], r["round"], r["split"]))


def summarise(records: list[dict[str, Any]]) -> str:
    """Held-out J by round, gain of the selected round and regret closed, by game and arm."""
    held = [r for r in records if r["split"] == "heldout"]
    lines = []
    for game, arm in sorted({(r["game"], r["arm"]) for r in held}):
        mine = [r for r in held if (r["game"], r["arm"]) == (game, arm)]
        rounds = sorted({r["round"] for r in mine})
        path = " > ".join(
            f"{statistics.fmean(r['J_agent_turn'] for r in mine if r['round'] == k):.3f}"
            for k in rounds
        )
        chosen = [r for r in mine if r["selected"] and r["gain"] is not None]
        gain = f"{mean_se([r['gain'] for r in chosen])} ({len(chosen)} seeds)" if chosen else "-"
        closed = [r["regret_closed"] for r in chosen if r["regret_closed"] is not None]
        told = f"closed {statistics.fmean(closed):.2f}" if closed else ""
        lines.append(f"{game:16} {arm:17} J {path}   gain {gain}  {told}")
    return "\n".join(lines)
