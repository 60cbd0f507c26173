"""``iterpo run``: Algorithm 1 from a plan, resumable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iterpo.cli.options import Json, Settings
from iterpo.cli.output import examples, print_json, say

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "run"
EXAMPLES = examples(
    "iterpo run smoke",
    "iterpo run plan.yaml --set seed=2 --set improve.learning_rate=1e-4 --out runs/seed-2",
    "iterpo run runs/seed-2 --resume",
)


def command(
    plan: Annotated[
        str,
        typer.Argument(
            metavar="PLAN", help="YAML file, preset (demo, paper, smoke) or run folder."
        ),
    ],
    settings: Settings = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that was stopped or killed.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Run folder; by default runs/<name of the plan>.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a plan: rounds of collect, fit Q, improve, measure on held-out kernels.

    Every phase runs in a process of its own and is kept when it is finished, so a run that was
    killed goes on with --resume where it stopped, and ends with the same numbers.
    """
    from iterpo.cli import rounds
    from iterpo.cli.plans import read_plan
    from iterpo.cli.progress import listening
    from iterpo.experiments.ledger import PLAN
    from iterpo.experiments.loop import run
    from iterpo.experiments.results import read_run

    planned = read_plan(plan, settings)
    stored = Path(plan) if (Path(plan) / PLAN).is_file() else Path("runs") / planned.name
    folder = out or stored
    with listening() as report:
        result = run(planned, folder, resume=resume, report=report)
    facts = read_run(folder)
    if as_json:
        print_json(rounds.as_json(facts))
        return
    rounds.print_rounds(facts)
    rounds.print_timings(facts)
    if result.converged:
        say("stopped early: Q has converged")
    say(f"everything is in {folder}; transcripts: iterpo show {folder}")
