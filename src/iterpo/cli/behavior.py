"""``iterpo behavior``: what the agent of a run does differently at its best round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iterpo.cli.options import Json, lies_at_a_file, read_split
from iterpo.cli.output import examples, print_json, remark, say

if TYPE_CHECKING:
    from iterpo.experiments.judged import JudgeDesk
    from iterpo.experiments.speakers import Served

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "behavior"
RESULT = "behavior.json"
EXAMPLES = examples(
    "iterpo behavior runs/demo",
    "iterpo behavior runs/seed-1 runs/seed-2 runs/seed-3 --split train --round 4",
    "iterpo behavior runs/demo --judge http://localhost:8000/v1#qwen",
    "iterpo behavior runs/demo --judge http://localhost:8080/v1#small --kernels 20 --concurrency 1 "
    "--timeout 600",
)
_RETRIES = 3
_HERE = (
    "(In this command base_url is the address in --judge, call_timeout_s is --timeout, "
    "max_new_tokens is --max-tokens, concurrency is --concurrency, and the key is read from "
    "OPENAI_API_KEY; other keys that a message names belong to plans.)"
)


Judge = Annotated[
    str | None,
    typer.Option(
        "--judge",
        metavar="URL#MODEL",
        help="A model on an OpenAI-compatible server that codes what no rule can; its key is "
        "read from OPENAI_API_KEY.",
    ),
]
Concurrency = Annotated[
    int, typer.Option(min=1, help="Requests to the judge at once; 1 for a small local server.")
]
Timeout = Annotated[
    float, typer.Option(min=0.1, metavar="SECONDS", help="Longest wait for one answer.")
]
MaxTokens = Annotated[
    int, typer.Option(min=1, help="Longest answer of the judge, its thinking included.")
]
Kernels = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Compare a sample of N kernels, by rule and judge."),
]
Round = Annotated[
    int | None, typer.Option("--round", help="Later round; by default the best of each run.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Folder for the result and the judge's raw answers; with a judge by default "
        "RUN/behavior of the first run.",
    ),
]


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders of one game.")],
    judge: Judge = None,
    concurrency: Concurrency = 4,
    timeout: Timeout = 120.0,
    max_tokens: MaxTokens = 1024,
    kernels: Kernels = None,
    round_: Round = None,
    split: Annotated[str, typer.Option(help="Kernels: train or heldout.")] = "heldout",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Count behaviours at round 0 and at the best round, paired by kernel (appendix J).

    Rules code what the transcript decides, and a judge the rest; where both can, their agreement
    is told. Answers of a judge are kept as they come and never asked for twice; without --judge
    those that are kept are read again. Exit status 1: a judge was asked, and coded nothing.
    """
    import json

    from iterpo.artifacts import write_atomic
    from iterpo.cli.behavior_tables import print_behaviours
    from iterpo.cli.progress import Bars
    from iterpo.experiments.behaviors import behaviour_shifts
    from iterpo.experiments.judged import JudgeDesk
    from iterpo.experiments.results import read_run

    where = read_split(split)
    asked = _judge(judge, concurrency, timeout, max_tokens) if judge else None
    folder, kept = out or (runs[0] / "behavior"), bool(asked or out)
    facts = [read_run(run) for run in runs]
    if kept:
        _check_folder(folder)
    with Bars() as bars:

        def progress(done: int, total: int, failed: int) -> None:
            bars.update("judge", done, total, {"failed": failed})

        desk = JudgeDesk(asked, folder, progress) if asked else _earlier(folder)
        found = behaviour_shifts(facts, where, round_, desk, kernels)
    if kept:
        write_atomic(folder / RESULT, json.dumps(found, indent=1, sort_keys=True) + "\n")
    if as_json:
        print_json(found)
    else:
        print_behaviours(found)
        if kept:
            say(f"the result is {folder / RESULT}")
    if asked:
        if found["judge"]["first_failure"]:
            remark(_HERE)
        _check_coded(found["judge"], told=not as_json)


def _check_coded(judge: Mapping[str, Any], *, told: bool) -> None:
    """End with exit status 1 where everything that was asked about is uncoded."""
    if judge["coded"] == judge["silent"] < judge["conversations"]:
        why = "" if told else f" {judge['first_failure'] or judge['first_unreadable']}"
        remark(f"iterpo: the judge coded nothing; what the rules say stands.{why}")
        raise typer.Exit(1)


def _judge(spec: str, concurrency: int, timeout_s: float, max_tokens: int) -> Served:
    """A served model that answers greedily, so that asking again would say the same."""
    from dataclasses import replace

    from iterpo.domain import Sampling
    from iterpo.errors import ConfigError
    from iterpo.experiments.speakers import Served, read_speaker

    try:
        judge = read_speaker(spec, Sampling(temperature=0.0, max_new_tokens=max_tokens))
        if isinstance(judge, Served):
            endpoint = replace(
                judge.endpoint,
                concurrency=concurrency,
                call_timeout_s=timeout_s,
                # Tries and the waits between them, which are as long at most, end well before.
                conversation_timeout_s=3 * (_RETRIES + 1) * timeout_s,
                retries=_RETRIES,
                logprobs=False,
                extra_body={"seed": None},  # greedy answers need none, and some servers know none
            )
            return replace(judge, endpoint=endpoint)
    except ConfigError as error:
        raise ConfigError(f"--judge: {error}\n{_HERE}") from error
    raise ConfigError(
        f"--judge is {spec!r}; accepted: a served model as URL#MODEL, such as "
        "http://localhost:8000/v1#qwen"
    )


def _earlier(folder: Path) -> JudgeDesk | None:
    """The desk of an earlier call, whose answers are read again while nobody is asked."""
    import json

    from iterpo.experiments.judged import JudgeDesk, judge_of

    try:
        told = json.loads((folder / RESULT).read_text(encoding="utf-8"))["judge"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    if not told:
        return None
    judge = judge_of(told)
    if judge is None:
        remark(
            f"what a judge said in {folder / RESULT} is left out: an older version of iterpo asked "
            "it; ask anew with --judge"
        )
        return None
    return JudgeDesk(judge, folder, asks=False)


def _check_folder(folder: Path) -> None:
    """Refuse a file as a folder before anybody is asked."""
    from iterpo.errors import ConfigError

    if lies_at_a_file(folder):
        raise ConfigError(f"{folder} lies at a file, or below one; name another folder with --out")
