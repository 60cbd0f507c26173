"""``iterpo collect``: deploy a policy against a partner and log what is said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from iterpo.cli.options import (
    SPEAKERS,
    AgentSpec,
    EnvOptions,
    Json,
    MaxNewTokens,
    OutFolder,
    PartnerSpec,
    SplitName,
    Temperature,
    Threads,
    TopP,
    lies_at_a_file,
    read_sampling,
    read_split,
)
from iterpo.cli.output import estimate, examples, print_json, print_table, remark, say

if TYPE_CHECKING:
    from iterpo.collect import Tally
    from iterpo.domain import Conversation, Scenario
    from iterpo.experiments.speakers import Seating

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "collect"
EXAMPLES = examples(
    "iterpo collect --policy nano --out logs/nano",
    "iterpo collect --policy work/policy --out logs/better --split heldout",
    "iterpo collect --policy nano --partner nano --threads 1 --out logs/self-play",
    "iterpo collect --policy work/policy --out logs/explored --explore 0.25",
    "iterpo collect --env deal_or_no_deal --agent oracle --out logs/oracle",
)
_GAMMA = 0.9
Explore = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=1.0,
        metavar="SHARE",
        help="Share of the conversations in which the agent speaks under a drawn persona, so that "
        "Q sees other responses; 0: none.",
    ),
]
ExploreScope = Annotated[
    str, typer.Option(help="What a persona says: one action (Q can learn from it) or conversation.")
]


def command(
    out: OutFolder,
    agent: AgentSpec = "nano",
    partner: PartnerSpec = "scripted",
    env: Annotated[str, typer.Option("--env", help="Game (`iterpo envs`).")] = "ultimatum",
    option: EnvOptions = None,
    scenarios: Annotated[int, typer.Option(min=1, max=1_000_000, help="Kernels to play.")] = 100,
    per_scenario: Annotated[int, typer.Option(min=1, help="Conversations per kernel.")] = 4,
    split: SplitName = "train",
    seed: Annotated[int, typer.Option(help="Seed of all draws.")] = 42,
    data_seed: Annotated[int, typer.Option(help="Seed that chooses the kernels.")] = 42,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    max_new_tokens: MaxNewTokens = 64,
    threads: Threads = None,
    explore: Explore = 0.0,
    explore_scope: ExploreScope = "action",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a stopped batch.")] = False,
    as_json: Json = False,
) -> None:
    """Set below: the help names the speakers."""
    from iterpo.agents.persona import PersonaConfig, Scope
    from iterpo.cli.games import game_for, use_threads
    from iterpo.experiments.speakers import Local, check_seats, read_speaker, seat

    asked: dict[str, Any] = {"env": env, "option": sorted(option or [])}
    asked |= {"agent": agent, "partner": partner, "threads": threads}
    asked |= {"scenarios": scenarios, "per_scenario": per_scenario, "split": split}
    asked |= {"seed": seed, "data_seed": data_seed}
    drawn = {"temperature": temperature, "top_p": top_p, "max_new_tokens": max_new_tokens}
    where, sampling = read_split(split), read_sampling(temperature, top_p, max_new_tokens)
    personas = PersonaConfig(explore, cast(Scope, explore_scope)) if explore else None
    asked |= {"explore": explore, "explore_scope": explore_scope} if explore else {}
    speakers = (read_speaker(agent, sampling), read_speaker(partner, sampling))
    game = game_for(env, option, speakers)
    check_seats(
        game, *speakers, personas
    )  # before a folder is claimed, which is before weights are loaded
    kernels = game.scenarios(where, scenarios, data_seed)
    _claim(out, asked | drawn, resume)
    use_threads(threads, speakers)
    seating = seat(game, *speakers, gamma=_GAMMA, explore=personas)
    played = _play(out, seating, kernels, asked)
    _tell_failures(out, played)
    facts = _measured(played)
    if as_json:
        print_json({"folder": str(out), "measurement": facts})
        return
    means = [(k, estimate(v)) for k, v in facts.items() if isinstance(v, dict) and "mean" in v]
    if means:
        print_table(f"{len(played)} conversations", ("measure", "mean ± standard error"), means)
    fit = f"; next: iterpo fit-q {out} --policy {agent} ..."
    fit += " --set off_policy=drop" if personas else ""
    trainable = isinstance(speakers[0], Local)
    say(f"the log is {out / 'conversations.jsonl'}" + (fit if trainable else ""))


command.__doc__ = (
    "Play conversations and log them in OUT/conversations.jsonl, with a progress bar.\n\n"
    "A failed conversation is a record in the log, never a lost batch and never a zero reward."
    f"\n\n{SPEAKERS}"
)


def _claim(out: Path, asked: dict[str, Any], resume: bool) -> None:
    """Refuse to add to a batch that was asked for with other settings."""
    import json

    from iterpo.artifacts import is_sealed, write_atomic
    from iterpo.errors import ResumeError

    note = out / "collect.json"
    if lies_at_a_file(out):
        raise ResumeError(f"{out} lies at a file, or below one; name another --out.")
    if is_sealed(out):
        raise ResumeError(
            f"{out} holds a finished batch (iterpo measure {out}); name another --out."
        )
    if out.exists() and any(out.iterdir()) and not (resume and note.is_file()):
        raise ResumeError(
            f"{out} is not empty. Go on with a stopped batch with --resume, or name another --out."
        )
    if note.is_file():
        known = json.loads(note.read_text())
        if known != asked:
            other = sorted(k for k in asked.keys() | known if asked.get(k) != known.get(k))
            raise ResumeError(
                f"{out} holds a batch with other settings ({', '.join(other)}); "
                "give the same ones, or name another --out."
            )
    write_atomic(note, json.dumps(asked, indent=1, sort_keys=True) + "\n")


def _tell_failures(out: Path, played: Sequence[Conversation]) -> None:
    """Say what failed; where everything did, --resume plays the batch again."""
    from iterpo.artifacts import MANIFEST

    failed = [c for c in played if not c.outcome.ending.scored]
    if len(failed) == len(played):
        (out / MANIFEST).unlink()
    elif failed:
        remark(
            f"{len(failed)} of {len(played)} conversations failed and are left out of the means. "
            f"The first one: {failed[0].outcome.detail}"
        )


def _measured(played: Sequence[Conversation]) -> dict[str, Any]:
    """The measurement; nothing where all were explored, which leaves no J but a log."""
    from iterpo.errors import BatchError
    from iterpo.measure import measure

    try:
        return measure(played, _GAMMA).to_dict()
    except BatchError as error:
        if not any(c.outcome.ending.scored for c in played):
            raise
        remark(f"iterpo: {error}")
        return {}


def _play(
    out: Path, seating: Seating, kernels: Sequence[Scenario], asked: dict[str, Any]
) -> tuple[Conversation, ...]:
    from iterpo.cli.progress import Bars
    from iterpo.collect import Pace, collect_into, seats

    places = seats(kernels, asked["per_scenario"], round=seating.round, seed=asked["seed"])
    pace = Pace()
    with Bars() as bars:

        def progress(tally: Tally) -> None:
            bars.update("collect", tally.done, tally.total, pace.facts(tally))

        return collect_into(out, seating.table, places, j_star=seating.j_star, progress=progress)
