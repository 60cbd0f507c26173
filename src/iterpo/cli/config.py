"""``iterpo config``: check and show plans, and print their schema."""

from __future__ import annotations

from typing import Annotated

import typer

from iterpo.cli.options import Json, Settings
from iterpo.cli.output import examples, print_json, say

__all__ = ["app", "check", "schema", "show"]

app = typer.Typer(
    help="Check and show plans, and print their schema.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

PlanName = Annotated[
    str,
    typer.Argument(metavar="PLAN", help="YAML file, run folder, or preset: demo, paper, smoke."),
]


@app.command(
    epilog=examples(
        "iterpo config check plan.yaml", "iterpo config check demo --set q.learning_rate=1e-3"
    )
)
def check(plan: PlanName, settings: Settings = None, as_json: Json = False) -> None:
    """Check a plan: every mistake at once, exit code 2 if there is one.

    Looks at names, types, ranges and the game's options. Data, model and context length are
    checked by the first phase of `iterpo run`, before anything expensive.
    """
    from iterpo.cli.plans import read_plan

    checked = read_plan(plan, settings)
    if as_json:
        print_json({"ok": True, "name": checked.name, "identity": checked.identity()})
    else:
        say(f"{plan} is a valid plan ({checked.name}, identity {checked.identity()[:12]})")


@app.command(epilog=examples("iterpo config schema > iterpo-plan.schema.json"))
def schema(as_json: Json = False) -> None:  # noqa: ARG001 - it is JSON in any case
    """Print the JSON Schema of plans, with a description of every key."""
    from iterpo.config import json_schema
    from iterpo.experiments.plan import Plan

    print_json(json_schema(Plan))


@app.command(
    epilog=examples("iterpo config show demo", "iterpo config show demo --set seed=3 > plan.yaml")
)
def show(plan: PlanName, settings: Settings = None, as_json: Json = False) -> None:
    """Print a plan with every default filled in, as it would run."""
    from iterpo.cli.plans import read_plan
    from iterpo.config import canonical_yaml

    resolved = read_plan(plan, settings)
    if as_json:
        print_json(resolved.as_dict())
    else:
        say(canonical_yaml(resolved).rstrip())
