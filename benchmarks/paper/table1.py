"""Table 1 at CPU scale: all methods x six games x three seeds x four rounds, one resumable command.

    python benchmarks/paper/table1.py --jobs 2

Runs table1-nano.yaml with the settings of chosen-nano.yaml (choose.py), and copies its records to
benchmarks/results/table1-nano.json after every cell. The same command goes on after a kill; `iterpo
report benchmarks/results/table1-nano.json` makes the tables of what is there.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from iterpo.artifacts import write_atomic
from iterpo.cli.plans import read_study_file
from iterpo.cli.progress import listening
from iterpo.domain import Split
from iterpo.experiments.events import Event
from iterpo.experiments.layers import merged
from iterpo.experiments.records import RECORDS
from iterpo.experiments.study import BASE, Study
from iterpo.experiments.study_loop import run_study
from iterpo.experiments.study_records import KERNELS, read_kernels, write_kernels

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CONTROL = "shuffled"


def study_of(chosen: Path | None, settings: list[str]) -> Study:
    """The study, with the settings that were chosen; the control has those of iterpo."""
    os.environ.setdefault("ITERPO_DATA", str(ROOT.parent / "shared" / "data"))
    study = read_study_file(str(HERE / "table1-nano.yaml"), settings)
    if chosen is None:
        return study
    found: dict[str, Any] = yaml.safe_load(chosen.read_text())
    found[CONTROL] = found.get("iterpo", {})
    methods = {m: merged(own or {}, found.get(m)) for m, own in study.methods.items()}
    return replace(study, methods=methods)


def keep(folder: Path, results: Path, tuned: bool) -> None:
    """The study's records as committed files: a row by game, method, seed, round and split.

    Beside them the held-out kernels of round 0 and of the selected rounds, which is what
    differences are paired by; all rounds of all would be ten times as much.
    """
    told = json.loads((folder / RECORDS).read_text())
    told["meta"]["tuned"] = tuned
    write_atomic(results, json.dumps(told, indent=1) + "\n")
    key = ("game", "method", "seed", "round", "split")
    wanted = {tuple(r[k] for k in key) for r in told["records"] if r["selected"]}
    wanted |= {
        (r["game"], told["meta"]["reference"], *(r[k] for k in key[2:]))
        for r in told["records"]
        if r["method"] == BASE
    }
    rows = [
        row
        for row in read_kernels(folder / KERNELS)
        if row["split"] == Split.HELDOUT.value and tuple(row[k] for k in key) in wanted
    ]
    write_kernels(results.with_name(f"{results.stem}-{KERNELS}"), rows)


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2, help="cells side by side, one core each")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "table1-nano")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "benchmarks" / "results" / "table1-nano.json"
    )
    parser.add_argument("--chosen", type=Path, default=HERE / "chosen-nano.yaml")
    parser.add_argument("--untuned", action="store_true", help="the study's own settings instead")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="a.b=c")
    options = parser.parse_args()
    if not options.untuned and not options.chosen.is_file():
        parser.error(
            f"{options.chosen} is absent: run tune-nano.yaml and choose.py first, or say --untuned"
        )
    chosen = None if options.untuned else options.chosen
    study = study_of(chosen, options.settings)

    with listening() as show:

        def report(event: Event) -> None:
            show(event)
            if event.kind == "progress" and (options.out / RECORDS).is_file():
                keep(options.out, options.results, chosen is not None)

        result = run_study(study, options.out, jobs=options.jobs, report=report)
    keep(options.out, options.results, chosen is not None)
    print(f"{result.cells - len(result.failed)} of {result.cells} cells are in {options.results}")
    print(f"tables: iterpo study show {options.out}")
    if result.failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
