"""``iterpo chat``: a person takes one side of a game, any speaker the other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iterpo.cli.options import (
    SPEAKERS,
    EnvOptions,
    Kernel,
    MaxNewTokens,
    SplitName,
    Temperature,
    Threads,
    TopP,
    read_sampling,
    read_split,
)
from iterpo.cli.output import examples, say

if TYPE_CHECKING:
    from iterpo.agents.base import Agent, Reply, Seat
    from iterpo.domain import Conversation, Role, Sampling, Scenario, View
    from iterpo.environments.base import Environment
    from iterpo.experiments.results import RunFacts
    from iterpo.experiments.speakers import Speaker

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "chat"
EXAMPLES = examples(
    "iterpo chat ultimatum --agent nano",
    "iterpo chat --run runs/demo",
    "printf 'What do you offer?\\n' | iterpo chat --run runs/demo",
    "iterpo chat ultimatum --as agent",
    "iterpo chat ultimatum --as agent --partner http://localhost:8000/v1#qwen",
)
_GAMMA = 0.9


class _Left(Exception):  # noqa: N818 - no error, the person has gone
    """The person closed the conversation."""


class _Person:
    """The person's side: reads a line for every message."""

    async def reply(self, view: View) -> Reply:  # noqa: ARG002 - the person has read it all
        from iterpo.agents.base import Reply

        while sys.stdin is not None:  # it is None where it was closed
            if sys.stdin.isatty():
                sys.stdout.write("you> ")
            sys.stdout.flush()
            line = sys.stdin.readline()
            if not line:
                break
            if line.strip():
                if not sys.stdin.isatty():
                    say(f"you> {line.strip()}")
                return Reply(line.strip())
        raise _Left

    def close(self) -> None:
        """Nothing to free."""


def command(
    name: Annotated[
        str | None,
        typer.Argument(help="Game (`iterpo envs`).", show_default="ultimatum, or the run's"),
    ] = None,
    side: Annotated[
        str, typer.Option("--as", help="Which side you take: partner or agent.")
    ] = "partner",
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",
            "--policy",
            metavar="WHO",
            help="Who you play against as the partner.",
            show_default="nano, or the run's best policy",
        ),
    ] = None,
    partner: Annotated[
        str | None,
        typer.Option(
            metavar="WHO",
            help="Who you play against as the agent.",
            show_default="scripted, or the run's",
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", help="Take the game and the other side from this run."),
    ] = None,
    option: EnvOptions = None,
    kernel: Kernel = 0,
    split: SplitName = "heldout",
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    max_new_tokens: MaxNewTokens = 64,
    threads: Threads = None,
    seed: Annotated[int, typer.Option(help="Seed of the model's sampling.")] = 0,
) -> None:
    """Set below: the help names the speakers."""
    from iterpo.cli.aloud import converse
    from iterpo.cli.games import game_for, kernel_of, make_game, use_threads
    from iterpo.experiments.speakers import seat

    role = _role(side, agent, partner)
    _check_source(name, option, run)
    where, sampling = read_split(split), read_sampling(temperature, top_p, max_new_tokens)
    facts = _facts(run)
    other = _other(agent or partner, role, facts, sampling)
    if facts is not None:
        played = facts.plan.environment
        game = make_game(played.name, played.options)
    else:
        game = game_for(name or "ultimatum", option, (other,))
    sides = (other, _person) if role.value == "partner" else (_person, other)
    use_threads(threads, (other,))
    seating = seat(game, *sides, gamma=_GAMMA)
    scenario = kernel_of(game, where, kernel)
    _introduce(game, scenario, role)
    _finish(converse(seating, scenario, seed, (role.other,)))


command.__doc__ = (
    "Take one side of a game yourself; your lines come from the keyboard or a pipe.\n\n"
    r"Write boxes such as \boxed{AGREED: split=$40} as the game's rules say; end with Ctrl-D."
    f"\n\n{SPEAKERS}"
)


def _person(seat: Seat) -> Agent:  # noqa: ARG001
    return _Person()


def _role(side: str, agent: str | None, partner: str | None) -> Role:
    from iterpo.domain import Role
    from iterpo.errors import ConfigError

    if side not in [r.value for r in Role]:
        raise ConfigError(f"--as is {side!r}; accepted: {', '.join(r.value for r in Role)}")
    own = {"agent": agent, "partner": partner}[side]
    if own is not None:
        raise ConfigError(
            f"--{side} is {own!r}, but you are the {side} yourself; name your opponent with "
            f"--{Role(side).other.value}, or take the other side with --as {Role(side).other.value}"
        )
    return Role(side)


def _check_source(name: str | None, option: list[str] | None, run: Path | None) -> None:
    from iterpo.errors import ConfigError

    if run is not None and (name is not None or option):
        raise ConfigError("--run takes the game and its options from the run; leave them out")


def _facts(run: Path | None) -> RunFacts | None:
    if run is None:
        return None
    from iterpo.experiments.results import read_run

    return read_run(run)


def _other(spec: str | None, role: Role, run: RunFacts | None, sampling: Sampling) -> Speaker:
    """Who sits on the other side: as named, as the run has it, or a default."""
    from iterpo.domain import Role
    from iterpo.experiments.speakers import Local, partner_of, read_speaker

    if spec is None and run is not None:
        from iterpo.experiments.lineage import policy_of_round

        if role is Role.AGENT:
            return partner_of(run.plan.partner)
        trained = len([r for r in run.rounds if r.update])
        best = run.best_round if run.best_round is not None else trained
        return Local(policy_of_round(run.folder, run.plan, best), sampling)
    return read_speaker(spec or ("scripted" if role is Role.AGENT else "nano"), sampling)


def _introduce(game: Environment, scenario: Scenario, role: Role) -> None:
    from iterpo.cli.transcripts import print_message

    opening = game.opening(scenario)
    view = game.view(scenario, role, (opening,))
    say(f"You are the {role.value} in {game.name} ({scenario.kernel_id}). What you are told:\n")
    say(view.system + "\n")
    if view.reminder:
        say(view.reminder + "\n")
    who = "you" if opening.role is role else opening.role.value
    print_message(f"{who} (opening)", opening.text)


def _finish(conversation: Conversation) -> None:
    from iterpo.cli.aloud import check_unbroken
    from iterpo.cli.transcripts import print_outcome

    if conversation.outcome.detail.startswith("_Left"):
        say("\nyou left; nothing was agreed.")
        return
    check_unbroken(conversation)
    print_outcome(conversation, _GAMMA)
