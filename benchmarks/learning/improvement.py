"""Improvement with nano: games x seeds x arms, each against its controls, one resumable command.

    python benchmarks/learning/improvement.py --seeds 5 --jobs 2

Arms: `iterpo` (improvement.yaml), `paper-recipe` (the paper's plain Q, step size and sampling),
`shuffled-returns` (returns permuted before Q is fitted: a gain that survives this is not Q's),
`simulated-q` (candidates valued by playing on: what an exact Q would do), and the yardsticks `base`
(pi_0 of the iterpo run), `first-counter` and `oracle`. A cell is a process; finished cells are
looked up, a stopped one goes on from its last finished phase, and the records are written after
every cell.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import simulated_q  # registers the arm's method
from cells import GAMES, ROOT, cell_plan, mean_se, versions, write_records

from iterpo import environments
from iterpo.agents.base import AgentFactory
from iterpo.agents.scripted import Bargaining, ScriptedPartner
from iterpo.agents.yardsticks import FirstCounter, Oracle
from iterpo.collect import Table, collect, seats
from iterpo.domain import Split
from iterpo.experiments import phases
from iterpo.experiments.loop import run
from iterpo.experiments.plan import Plan
from iterpo.experiments.rollout import draw_scenarios
from iterpo.measure import measure

PLAN = Path(__file__).with_name("improvement.yaml")
RESULTS = ROOT / "benchmarks" / "results" / "improvement-nano.json"
PAPER = [
    *("q.pooling=final", "q.heads=1", "q.standardise=false", "q.clamp=false"),
    *("q.judge_fraction=0", "collect.sampling.temperature=0.7", "collect.sampling.top_p=0.9"),
    *("improve.sampling.temperature=0.7", "improve.sampling.top_p=0.9", "improve.steps=null"),
    *("improve.prompts_per_step=8", "improve.learning_rate=1e-5", "improve.beta=0"),
    "improve.std_floor=0",
]
ARMS: dict[str, list[str]] = {
    "iterpo": [],
    "paper-recipe": PAPER,
    "shuffled-returns": ["q.shuffle_returns=true"],
    "simulated-q": ["method.name=simulated_q", "q.judge_fraction=0"],
}
YARDSTICKS = {"first-counter": FirstCounter, "oracle": Oracle}
KEYS = ("J_agent_turn", "J_message", "agreement", "turns", "reward")


def plan_of(game: str, arm: str, seed: int, extra: Iterable[str] = ()) -> Plan:
    """The plan of one cell; yardsticks have no settings of their own."""
    return cell_plan(PLAN, game, ARMS.get(arm, []), seed, extra)


def play_cell(folder: Path, game: str, arm: str, seed: int, extra: list[str]) -> None:
    """All rounds of a cell, its phases in this process: torch is loaded once."""
    plan = plan_of(game, arm, seed, extra)
    begun = (folder / "plan.yaml").exists()
    run(
        plan,
        folder,
        resume=begun,
        execute=lambda place, key, _lock, report: phases.execute(place, key, report),
    )


def yardstick_rows(game: str, arm: str, seed: int, extra: list[str]) -> list[dict[str, Any]]:
    """A fixed agent on the same kernels, against the same partners."""
    plan = plan_of(game, arm, seed, extra)
    env = environments.make(plan.environment.name, **plan.environment.options)
    bargaining = cast(Bargaining, env)
    partner = ScriptedPartner(bargaining, plan.partner.seed)
    agent: AgentFactory = YARDSTICKS[arm](bargaining)
    rows = []
    for split in Split:
        per = plan.collect.per_scenario if split is Split.TRAIN else plan.heldout.per_scenario
        begun = time.monotonic()
        played = collect(
            Table(env, agent, partner),
            seats(draw_scenarios(env, plan, split, 0), per, round=0, seed=plan.seed),
            j_star=lambda scenario: partner.j_star(scenario, plan.q.gamma),
        )
        facts = measure(played, plan.q.gamma).to_dict()
        wall = time.monotonic() - begun
        row = {"game": game, "arm": arm, "seed": seed, "round": 0, "split": split.value}
        rows.append({**row, **_measured(facts), "selected": True, "wall_s": round(wall, 3)})
    return rows


def rows_of(folder: Path, game: str, arm: str, seed: int) -> list[dict[str, Any]]:
    """Flat records of a finished run."""
    result = json.loads((folder / "result.json").read_text())
    timings = [json.loads(t) for t in (folder / "timings.jsonl").read_text().splitlines()]
    rows = []
    for i, facts in enumerate(result["rounds"]):
        made = _made(folder / f"round-{i - 1}" / "update") if i else {}
        wall = sum(t["wall_s"] for t in timings if t["phase"].startswith(f"round-{i}/"))
        for split in Split:
            row = {"game": game, "arm": arm, "seed": seed, "round": i, "split": split.value}
            row |= {"selected": i == result["best_round"], **_measured(facts[split.value])}
            rows.append({**row, **made, "wall_s": round(wall, 1)})
    return rows


def _measured(facts: dict[str, Any]) -> dict[str, Any]:
    return {k: facts[k]["mean"] for k in KEYS} | {"J_star": facts["j_star_agent_turn"]["mean"]}


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
    """Adds the arm `base` and the share of the regret of base that each row closes."""
    rounds0 = [r for r in records if r["arm"] == "iterpo" and r["round"] == 0]
    base = [{**r, "arm": "base", "selected": True} for r in rounds0]
    start = {(r["game"], r["seed"], r["split"]): r["J_agent_turn"] for r in base}
    out = []
    for row in [*records, *base]:
        j0 = start.get((row["game"], row["seed"], row["split"]))
        room = None if j0 is None else row["J_star"] - j0
        closed = (row["J_agent_turn"] - j0) / room if j0 is not None and room else None
        out.append({**row, "regret_closed": closed})
    return sorted(out, key=lambda r: (r["game"], r["arm"], r["seed"], r["round"], r["split"]))


def summarise(records: list[dict[str, Any]]) -> str:
    """Held-out J by round, gain of the selected round and regret closed, by game and arm."""
    held = [r for r in records if r["split"] == "heldout"]
    base = {(r["game"], r["seed"]): r["J_agent_turn"] for r in held if r["arm"] == "base"}
    lines = []
    for game, arm in sorted({(r["game"], r["arm"]) for r in held}):
        mine = [r for r in held if (r["game"], r["arm"]) == (game, arm)]
        rounds = sorted({r["round"] for r in mine})
        path = " > ".join(
            f"{statistics.fmean(r['J_agent_turn'] for r in mine if r['round'] == k):.3f}"
            for k in rounds
        )
        chosen = [r for r in mine if r["selected"] and (game, r["seed"]) in base]
        gains = [r["J_agent_turn"] - base[game, r["seed"]] for r in chosen]
        closed = [r["regret_closed"] for r in chosen if r["regret_closed"] is not None]
        gain = f"{mean_se(gains)} ({len(gains)} seeds)" if gains else "-"
        told = f"closed {statistics.fmean(closed):.2f}" if closed else ""
        lines.append(f"{game:16} {arm:17} J {path}   gain {gain}  {told}")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--games", nargs="+", default=list(GAMES), choices=list(GAMES))
    parser.add_argument("--arms", nargs="+", default=[*ARMS, *YARDSTICKS])
    parser.add_argument("--jobs", type=int, default=2, help="cells side by side, one core each")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "improvement")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--set", action="append", default=[], dest="extra", metavar="a.b=c")
    parser.add_argument("--cell", nargs=3, metavar=("GAME", "ARM", "SEED"), help="used by itself")
    options = parser.parse_args()
    if options.cell:
        game, arm, seed = options.cell
        play_cell(options.out / "-".join(options.cell), game, arm, int(seed), options.extra)
        return
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    cells = [(g, a, s) for s in seeds for g in options.games for a in options.arms]

    played: dict[tuple[str, str, int], list[dict[str, Any]]] = {}

    def folder_of(cell: tuple[str, str, int]) -> Path:
        return Path(options.out) / "-".join(map(str, cell))

    def write() -> None:
        records: list[dict[str, Any]] = []
        for cell in cells:
            if cell in played:
                records += played[cell]
            elif (folder_of(cell) / "result.json").exists():
                records += rows_of(folder_of(cell), *cell)
        plan = plan_of(options.games[0], "iterpo", 0, options.extra)
        meta = {
            "versions": versions(),
            "plan": plan.as_dict(),
            "plan_hash": plan.identity(),
            "arms": {a: ARMS[a] for a in options.arms if a in ARMS},
            "settings": options.extra,
            "simulated_continuations": simulated_q.CONTINUATIONS,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, one core a run",
        }
        write_records(options.results, meta, with_regret(records))

    def one(cell: tuple[str, str, int]) -> None:
        if not (folder_of(cell) / "result.json").exists():
            command = [sys.executable, __file__, "--cell", *map(str, cell)]
            command += ["--out", str(options.out)]
            for setting in options.extra:
                command += ["--set", setting]
            log = folder_of(cell).with_suffix(".log")
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as sink:
                code = subprocess.run(command, stdout=sink, stderr=sink, check=False).returncode
            print("finished" if code == 0 else f"FAILED ({code}, see {log})", *cell, flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        finished = pool.map(one, [c for c in cells if c[1] in ARMS])
        for cell in cells:  # here, while the cells run in processes of their own
            if cell[1] in YARDSTICKS:
                played[cell] = yardstick_rows(*cell, options.extra)
        for _ in finished:
            write()
    write()
    print(summarise(json.loads(options.results.read_text())["records"]))


if __name__ == "__main__":
    main()
