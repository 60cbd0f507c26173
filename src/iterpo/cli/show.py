"""``iterpo show``: what was said in a run, and what each turn was credited."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iterpo.cli.options import Json
from iterpo.cli.output import examples, print_json, remark, say

if TYPE_CHECKING:
    from iterpo.cli.transcripts import Credit
    from iterpo.domain import Conversation
    from iterpo.experiments.results import RunFacts

__all__ = ["EXAMPLES", "NAME", "command", "credit_of_round"]

NAME = "show"
EXAMPLES = examples(
    "iterpo show runs/demo",
    "iterpo show runs/demo --rounds",
    "iterpo show runs/demo --round 0 --split heldout --kernel ult-p100-r6-0 -n 4",
    "iterpo show runs/demo --ending turn_limit --no-q",
)


def command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    rounds: Annotated[bool, typer.Option("--rounds", help="A table of the rounds.")] = False,
    round_: Annotated[
        int | None, typer.Option("--round", help="Round to read; by default the last with a Q.")
    ] = None,
    split: Annotated[str, typer.Option(help="Kernels: train or heldout.")] = "train",
    kernel: Annotated[str | None, typer.Option(help="Only this kernel.")] = None,
    ending: Annotated[str | None, typer.Option(help="Only this ending, e.g. agreed.")] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="Most transcripts to print.")] = 2,
    with_q: Annotated[
        bool, typer.Option("--q/--no-q", help="Score agent turns with the round's Q.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Show transcripts of a run with return and Q per agent turn, or a table of its rounds.

    Only files of the run are read; scoring turns with Q loads the round's policy (--no-q: not).
    """
    from iterpo.cli import rounds as tables
    from iterpo.cli import transcripts
    from iterpo.experiments.results import read_run

    run = read_run(folder)
    if rounds:
        if as_json:
            print_json(tables.as_json(run))
        else:
            tables.print_rounds(run)
            tables.print_timings(run)
            tables.print_versions(run)
        return
    i = round_ if round_ is not None else _latest(run)
    chosen = _choose(run, i, split, kernel, ending)
    credit = credit_of_round(run, i, with_q=with_q)
    shown = [transcripts.as_json(c, credit) for c in chosen[:n]]
    if as_json:
        print_json(shown)
        return
    for conversation in shown:
        transcripts.print_transcript(conversation, credit)
    say(f"{len(shown)} of {len(chosen)} conversations (-n for more)")


def credit_of_round(run: RunFacts, i: int, *, with_q: bool) -> Credit:
    """How round i credited agent turns: its discount, and its fitted Q where there is one."""
    from iterpo.artifacts import is_sealed, open_sealed
    from iterpo.cli.transcripts import Credit

    fitted = run.folder / f"round-{i}" / "update" / "q"
    gamma, unit = run.plan.q.gamma, run.plan.q.discount_unit
    if not is_sealed(fitted):
        return Credit(gamma, unit)
    gamma = open_sealed(fitted)["facts"]["config"]["gamma"]  # a method may have overruled it
    if not with_q:
        return Credit(gamma, unit)
    start = (
        open_sealed(fitted.parent)["facts"].get("start_round", i) if is_sealed(fitted.parent) else i
    )
    if start != i:
        remark(f"Q is left out: round {i} was rolled back, so its update fitted that of pi_{start}")
        return Credit(gamma, unit)
    try:
        from iterpo.experiments.lineage import policy_of_round
        from iterpo.methods.workspace import FolderWorkspace
        from iterpo.methods.workspace import Settings as Operators
    except ModuleNotFoundError as error:
        remark(f"Q is left out: {error.name} is not installed (pip install 'iterpo[train]')")
        return Credit(gamma, unit)
    where = Operators(dtype=run.plan.policy.dtype, device=run.plan.policy.device)
    workspace = FolderWorkspace(fitted.parent, where)
    spoke = policy_of_round(run.folder, run.plan, i)
    return Credit(gamma, unit, workspace.stored_q(spoke, fitted))


def _latest(run: RunFacts) -> int:
    from iterpo.errors import MissingDataError

    if not run.rounds:
        raise MissingDataError(
            f"no round of {run.folder} is finished yet; go on with "
            f"`iterpo run {run.folder} --resume`"
        )
    trained = [r.round for r in run.rounds if r.update]
    return trained[-1] if trained else run.rounds[-1].round


def _choose(
    run: RunFacts, i: int, split: str, kernel: str | None, ending: str | None
) -> list[Conversation]:
    from iterpo.domain import Ending, Split
    from iterpo.errors import UnknownNameError
    from iterpo.store import read_conversations

    for given, accepted, option in (
        (i, [r.round for r in run.rounds], "--round"),
        (split, [s.value for s in Split], "--split"),
        (ending, [None, *(e.value for e in Ending)], "--ending"),
    ):
        if given not in accepted:
            listed = ", ".join(str(a) for a in accepted if a is not None)
            raise UnknownNameError(f"{option} is {given!r}; there are: {listed or 'none yet'}")
    played = read_conversations(run.folder / f"round-{i}" / "deploy" / split)
    kernels = sorted({c.kernel_id for c in played})
    if kernel is not None and kernel not in kernels:
        raise UnknownNameError(
            f"--kernel is {kernel!r}; round {i} played, on {split}: {', '.join(kernels[:8])}"
            + (" ..." if len(kernels) > 8 else "")
        )
    return [
        c
        for c in played
        if kernel in (None, c.kernel_id) and ending in (None, c.outcome.ending.value)
    ]
