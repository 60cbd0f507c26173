"""Games without models: conversations per second of the oracle against the scripted partner.

One core, one process. `warm`: many conversations of each kernel, as in collection, so that parsed
messages and tables of a kernel are found in caches. `cold`: one conversation per kernel, with all
caches of the game emptied by a new process. Rates per CPU second stand beside those per second,
since they tell more on a machine that others use too. Run it as

    python benchmarks/speed/games.py --data ../shared/data
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
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from iterpo import environments
from iterpo.agents.scripted import Bargaining, ScriptedPartner
from iterpo.agents.yardsticks import Oracle
from iterpo.collect import Table, collect, seats
from iterpo.domain import Split

RESULT = Path(__file__).parents[1] / "results" / "games.json"


def make(name: str, data: str) -> environments.Environment:
    wants_data = hasattr(environments.make(name).options, "data_dir")
    return environments.make(name, **({"data_dir": data} if wants_data else {}))


def measure(name: str, data: str, kernels: int, per_kernel: int, repeats: int) -> dict[str, Any]:
    """Rates of one game in this process; the first pass is the cold one."""
    game = make(name, data)
    bargaining = cast(Bargaining, game)
    table = Table(game, Oracle(bargaining), ScriptedPartner(bargaining))
    scenarios = game.scenarios(Split.TRAIN, kernels)
    collect(table, seats(scenarios[:1], 1, round=0, seed=1))  # lazy imports are not the game's

    def rate(per_scenario: int, seed: int) -> tuple[float, float, int]:
        places = seats(scenarios, per_scenario, round=0, seed=seed)
        wall, cpu = time.perf_counter(), time.process_time()
        played = collect(table, places)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return len(played) / wall, len(played) / cpu, sum(len(c.turns) for c in played)

    cold = rate(1, 2)
    warm = [rate(per_kernel, 3 + i) for i in range(repeats)]
    return {
        "game": name,
        "kernels": len(scenarios),
        "conversations": len(scenarios) * per_kernel,
        "messages_per_conversation": warm[0][2] / (len(scenarios) * per_kernel),
        "warm_per_s": statistics.median(r[0] for r in warm),
        "warm_per_cpu_s": statistics.median(r[1] for r in warm),
        "warm_all_per_s": [r[0] for r in warm],
        "cold_per_s": cold[0],
        "cold_per_cpu_s": cold[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=str(Path(__file__).parents[2] / ".." / "shared" / "data"))
    parser.add_argument("--kernels", type=int, default=150)
    parser.add_argument("--per-kernel", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--game", help="measure this one and print its row (used by itself)")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    if args.game:
        row = measure(args.game, args.data, args.kernels, args.per_kernel, args.repeats)
        print(json.dumps(row))
        return
    rows = []
    for name in environments.names():
        # A process of its own, so that no game finds the caches that another one has filled.
        command = [sys.executable, __file__, "--game", name, "--data", args.data]
        command += ["--kernels", str(args.kernels), "--per-kernel", str(args.per_kernel)]
        command += ["--repeats", str(args.repeats)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        row = rows[-1]
        warm, cold = (f"{row[k]:6.0f}/s" for k in ("warm_per_s", "cold_per_s"))
        print(f"{name:16} warm {warm} ({row['warm_per_cpu_s']:.0f} per CPU second), cold {cold}")
    machine = {"machine": platform.machine(), "system": platform.system(), "cpus": os.cpu_count()}
    meta = {
        "iterpo": version("iterpo"),
        "python": platform.python_version(),
        "machine": machine,
        "load_1min": os.getloadavg()[0],
    }
    args.out.write_text(json.dumps({"meta": meta, "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
