"""``iterpo demo``: two rounds of IterPO on two CPU cores, and what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iterpo.cli.output import examples, print_table, say

if TYPE_CHECKING:
    from iterpo.experiments.results import RunFacts

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "demo"
EXAMPLES = examples("iterpo demo", "iterpo demo --seed 1 --out runs/another")


def command(
    seed: Annotated[int, typer.Option(min=0, help="Root of all random draws.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Run folder; by default runs/demo (or -seed-N).")
    ] = None,
) -> None:
    """Run two rounds of IterPO with the embedded model on Ultimatum: a few minutes on a CPU.

    A demo that was stopped goes on where it was; one that is finished is shown again.
    """
    from iterpo.cli import rounds
    from iterpo.cli.plans import read_plan
    from iterpo.cli.progress import listening
    from iterpo.experiments.ledger import PLAN
    from iterpo.experiments.loop import run
    from iterpo.experiments.results import read_run

    plan = read_plan("demo", [f"seed={seed}"])
    folder = out or Path("runs") / ("demo" if seed == 0 else f"demo-seed-{seed}")
    say(
        f"IterPO, {plan.rounds} rounds on {plan.environment.name} with {plan.policy.model}: "
        f"{plan.collect.scenarios} x {plan.collect.per_scenario} conversations a round, "
        f"seed {seed}."
    )
    with listening() as report:
        run(plan, folder, resume=(folder / PLAN).exists(), report=report)
    facts = read_run(folder)
    say()
    rounds.print_rounds(facts)
    rounds.print_timings(facts)
    _before_and_after(facts)
    _where(folder)


def _before_and_after(run: RunFacts) -> None:
    from iterpo.cli.show import credit_of_round
    from iterpo.cli.transcripts import as_json, print_transcript
    from iterpo.store import read_conversations

    after = run.best_round or run.rounds[-1].round
    say("\nOne conversation before and after: the first held-out kernel, whatever came of it.\n")
    for i in (0, after):
        played = read_conversations(run.folder / f"round-{i}" / "deploy" / "heldout")
        credit = credit_of_round(run, i, with_q=True)
        print_transcript(as_json(played[0], credit), credit)


def _where(folder: Path) -> None:
    rows = [
        ("plan, as it ran", folder / "plan.yaml"),
        ("what was said in round i", folder / "round-<i>/deploy/{train,heldout}"),
        ("fitted Q and its health", folder / "round-<i>/update/q, q_health.json"),
        ("improved policy (adapter)", folder / "round-<i>/update/policy"),
        ("training metrics", folder / "round-<i>/update/metrics"),
        ("result and ledger", folder / "result.json, ledger.json"),
    ]
    print_table("Where everything lies", ("what", "where"), [(a, str(b)) for a, b in rows])
    say(f"More transcripts: iterpo show {folder} -n 5")
    say(f"Play against it:  iterpo chat --run {folder}")
