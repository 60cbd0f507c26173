"""First look at learning: games x seeds x arms with nano, one resumable command.

    python benchmarks/learning/first_look.py --seeds 5 --jobs 2

Arms: `iterpo`, and `shuffled-returns`, the same run with the returns permuted before Q is fitted (a
gain that survives this is not Q's). Round 0 of every run is the base policy. Finished runs are
looked up, so the command can be stopped and started again; the records are rewritten after each.
"""

from __future__ import annotations

import argparse
import json
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cells import ROOT, cell_plan, mean_se, versions, write_records

from iterpo.experiments.loop import run

PLAN = Path(__file__).with_name("first_look.yaml")
RESULTS = ROOT / "benchmarks" / "results" / "first-look-nano.json"
GAMES = ("ultimatum", "deal_or_no_deal")
ARMS = {"iterpo": [], "shuffled-returns": ["q.shuffle_returns=true"]}


def rows_of(folder: Path, game: str, arm: str, seed: int) -> list[dict[str, Any]]:
    """Flat records of a finished run."""
    result = json.loads((folder / "result.json").read_text())
    timings = [json.loads(t) for t in (folder / "timings.jsonl").read_text().splitlines()]
    rows = []
    for i, facts in enumerate(result["rounds"]):
        update = folder / f"round-{i - 1}" / "update" / "manifest.json"
        health = json.loads(update.read_text())["facts"]["q_health"] if i else None
        for split in ("train", "heldout"):
            m = facts[split]
            rows.append(
                {
                    "game": game,
                    "arm": arm,
                    "seed": seed,
                    "round": i,
                    "split": split,
                    "selected": i == result["best_round"],
                    "J_agent_turn": m["J_agent_turn"]["mean"],
                    "J_agent_turn_se": m["J_agent_turn"]["se"],
                    "J_message": m["J_message"]["mean"],
                    "agreement": m["agreement"]["mean"],
                    "reward": m["reward"]["mean"],
                    "turns": m["turns"]["mean"],
                    "messages": m["messages"]["mean"],
                    "J_star": m["j_star_agent_turn"]["mean"],
                    "q_heldout_correlation": health["fit"]["pearson"] if health else None,
                    "wall_s": sum(
                        t["wall_s"] for t in timings if t["phase"].startswith(f"round-{i}/")
                    ),
                }
            )
    return rows


def summarise(records: list[dict[str, Any]]) -> str:
    """J on held-out kernels by round: mean ± SE over seeds, and paired gains over round 0."""
    lines = []
    cells = sorted({(r["game"], r["arm"]) for r in records})
    for game, arm in cells:
        mine = [r for r in records if (r["game"], r["arm"], r["split"]) == (game, arm, "heldout")]
        by_round = {
            k: {r["seed"]: r["J_agent_turn"] for r in mine if r["round"] == k}
            for k in sorted({r["round"] for r in mine})
        }
        path = " > ".join(mean_se(list(v.values())) for v in by_round.values())
        last = max(by_round)
        gains = [by_round[last][s] - by_round[0][s] for s in by_round[last]]
        worse = sum(g < 0 for g in gains)
        lines.append(
            f"{game:16} {arm:17} J {path}   "
            f"gain {mean_se(gains)} ({len(gains)} seeds, {worse} fell)"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--games", nargs="+", default=list(GAMES), choices=GAMES)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, one core each")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "first-look")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--set", action="append", default=[], dest="extra", metavar="a.b=c")
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    cells = [(g, a, s) for s in seeds for g in arguments.games for a in arguments.arms]

    def one(cell: tuple[str, str, int]) -> None:
        folder = arguments.out / "-".join(map(str, cell))
        if not (folder / "result.json").exists():
            game, arm, seed = cell
            plan = cell_plan(PLAN, game, ARMS[arm], seed, arguments.extra)
            run(plan, folder, resume=(folder / "plan.yaml").exists())
        print("finished", *cell, flush=True)
        done = [
            c for c in cells if (arguments.out / "-".join(map(str, c)) / "result.json").exists()
        ]
        records = [row for c in done for row in rows_of(arguments.out / "-".join(map(str, c)), *c)]
        meta = {
            "versions": versions(),
            "machine": f"{platform.machine()}, one core a run",
            "plan": PLAN.read_text(),
            "settings": arguments.extra,
        }
        write_records(arguments.results, meta, records)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(one, cells))
    print(summarise(json.loads(arguments.results.read_text())["records"]))


if __name__ == "__main__":
    main()
