"""``iterpo behavior``: what the agent of a run does differently at its best round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iterpo.cli.options import Json, read_split
from iterpo.cli.output import examples, number, print_json, print_table, remark, say

if TYPE_CHECKING:
    from iterpo.experiments.speakers import Served

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "behavior"
RESULT = "behavior.json"
EXAMPLES = examples(
    "iterpo behavior runs/demo",
    "iterpo behavior runs/seed-1 runs/seed-2 runs/seed-3 --split train --round 4",
    "iterpo behavior runs/demo --judge http://localhost:8000/v1#qwen",
)
_MAX_NEW_TOKENS = 1024


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders of one game.")],
    judge: Annotated[
        str | None,
        typer.Option(
            "--judge",
            metavar="URL#MODEL",
            help="A model on an OpenAI-compatible server that codes what no rule can; its key is "
            "read from OPENAI_API_KEY.",
        ),
    ] = None,
    round_: Annotated[
        int | None, typer.Option("--round", help="Later round; by default the best of each run.")
    ] = None,
    split: Annotated[str, typer.Option(help="Kernels: train or heldout.")] = "heldout",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder for the result and the judge's raw answers; with a judge by default "
            "RUN/behavior of the first run.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Count behaviours at round 0 and at the best round, paired by kernel (appendix J).

    Rules code what the transcript decides, and a judge the rest; where both can, their agreement
    is told. Answers of a judge are kept as they come and never asked for twice.
    """
    import json

    from iterpo.artifacts import write_atomic
    from iterpo.cli.progress import Bars
    from iterpo.experiments.behaviors import JudgeDesk, behaviour_shifts
    from iterpo.experiments.results import read_run

    where, asked = read_split(split), _judge(judge) if judge else None
    facts = [read_run(folder) for folder in runs]
    folder = out or (runs[0] / "behavior" if asked else None)
    with Bars() as bars:

        def progress(done: int, total: int, failed: int) -> None:
            bars.update("judge", done, total, {"failed": failed})

        desk = JudgeDesk(asked, folder, progress) if asked and folder else None
        found = behaviour_shifts(facts, where, round_, desk)
    if folder:
        write_atomic(folder / RESULT, json.dumps(found, indent=1, sort_keys=True) + "\n")
    if as_json:
        print_json(found)
        return
    _print(found)
    if folder:
        say(f"the result is {folder / RESULT}")


def _judge(spec: str) -> Served:
    """A served model that answers greedily, so that asking again would say the same."""
    from dataclasses import replace

    from iterpo.domain import Sampling
    from iterpo.errors import ConfigError
    from iterpo.experiments.speakers import Served, read_speaker

    judge = read_speaker(spec, Sampling(temperature=0.0, max_new_tokens=_MAX_NEW_TOKENS))
    if not isinstance(judge, Served):
        raise ConfigError(
            f"--judge is {spec!r}; accepted: a served model as URL#MODEL, such as "
            "http://localhost:8000/v1#qwen"
        )
    return replace(judge, endpoint=replace(judge.endpoint, logprobs=False))


def _print(found: dict[str, Any]) -> None:
    later = "/".join(f"pi_{i}" for i in dict.fromkeys(found["rounds"]))
    several = len(found["runs"]) > 1
    columns = ("behaviour", "by", "pi_0", later, "difference [95%]", "a talk", "a turn", "kappa")
    rows = []
    for row in found["rows"]:
        cells = (
            row["behaviour"],
            row["by"],
            _rate(row["before"]),
            _rate(row["after"]),
            _difference(row["difference"]),
            _two(row["count_before"]["mean"], row["count_after"]["mean"]),
            _two(row["per_turn_before"], row["per_turn_after"]),
            number((row.get("kappa") or {}).get("kappa")),
        )
        rows.append((*cells, _direction(row["by_run"])) if several else cells)
    kernels = found["rows"][0]["difference"]["clusters"]
    talks = " and ".join(map(str, found["conversations"]))
    print_table(
        f"{found['environment']}, {found['split']}: {talks} conversations on {kernels} kernels",
        (*columns, "runs alike") if several else columns,
        rows,
    )
    say(
        "pi_0 and the later policy: share of conversations; a talk, a turn: how often, before > "
        "after; kappa: agreement of rule and judge beyond chance"
    )
    _print_examples(found["examples"], later)
    _remarks(found)


def _print_examples(shown: dict[str, list[dict[str, Any]]], later: str) -> None:
    for name, quoted in shown.items():
        say(f"\n{name}")
        for e in quoted:
            who = later if e["after"] else "pi_0"
            text = " ".join(e["text"].split())
            say(f"  {who} ({e['by']}), {e['kernel_id']}, message {e['message']}: {text}")
    say()


def _remarks(found: dict[str, Any]) -> None:
    """What the table leaves out, and why."""
    absent = [name for name, who in found["coding"].items() if not who]
    if absent:
        say(f"can't occur in {found['environment']}: {', '.join(absent)}")
    judge = found["judge"]
    if judge is None:
        waiting = [name for name, who in found["coding"].items() if who == ["judge"]]
        if waiting:
            say(f"needs a judge (--judge URL#MODEL): {', '.join(waiting)}")
    else:
        say(
            f"judge {judge['model']}: {judge['coded']} of {judge['conversations']} conversations "
            f"coded, {judge['unreadable']} answers unreadable, {judge['failed']} not had; raw "
            f"answers: {judge['answers']}"
        )
        for key in ("first_unreadable", "first_failure"):
            if judge[key]:
                remark(f"{key.replace('_', ' ')}: {judge[key]}")
    if found["left_out"]:
        say(f"left out: {found['left_out']} conversations that failed or were explored")
    same = [run for run, i in zip(found["runs"], found["rounds"], strict=True) if i == 0]
    if same:
        remark(
            f"the best round of {', '.join(same)} is round 0, so it is compared with itself; "
            "give --round to see another"
        )


def _rate(interval: dict[str, Any]) -> str:
    return f"{interval['mean']:.1%}"


def _difference(interval: dict[str, Any]) -> str:
    low, high = (f"{100 * v:+.1f}" if v is not None else "?" for v in _ends(interval))
    return f"{100 * interval['mean']:+.1f} [{low}, {high}]"


def _ends(interval: dict[str, Any]) -> tuple[float | None, float | None]:
    return interval["low"], interval["high"]


def _two(before: float | None, after: float | None) -> str:
    return " > ".join("-" if v is None else f"{v:.2f}" for v in (before, after))


def _direction(by_run: Sequence[float | None]) -> str:
    """How many runs moved the way that most of them did."""
    known = [d for d in by_run if d is not None]
    most = max(sum(d > 0 for d in known), sum(d < 0 for d in known))
    return f"{most} of {len(known)}"
