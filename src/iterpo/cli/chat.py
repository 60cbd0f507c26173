"""``iterpo chat``: a person plays the partner against a policy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iterpo.cli.options import EnvOptions
from iterpo.cli.output import examples, number, remark, say

if TYPE_CHECKING:
    from iterpo.agents.base import Reply, Seat
    from iterpo.domain import Conversation, PolicyRef, View
    from iterpo.environments.base import Environment

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "chat"
EXAMPLES = examples(
    "iterpo chat --policy nano --env ultimatum --option prompt_style=compact",
    "iterpo chat --run runs/demo",
    "printf 'What do you offer?\\n' | iterpo chat --run runs/demo",
)


class _Left(Exception):  # noqa: N818 - no error, the person has gone
    """The person closed the conversation."""


class _Person:
    """The partner's side: prints what is new, reads a line."""

    def __init__(self) -> None:
        self._told = 0

    async def reply(self, view: View) -> Reply:
        from iterpo.agents.base import Reply

        for turn in view.turns[self._told :]:
            if turn.role is not view.role:
                say(f"{turn.role.value}> {turn.text}")
        self._told = len(view.turns)
        while True:
            if sys.stdin.isatty():
                sys.stdout.write("you> ")
            sys.stdout.flush()
            line = sys.stdin.readline()
            if not line:
                raise _Left
            if line.strip():
                if not sys.stdin.isatty():
                    say(f"you> {line.strip()}")
                return Reply(line.strip())

    def close(self) -> None:
        """Nothing to free."""


def command(
    policy: Annotated[
        str, typer.Option("--policy", help="Embedded model, folder, hub id or policy folder.")
    ] = "nano",
    env: Annotated[str, typer.Option("--env", help="Game (`iterpo envs`).")] = "ultimatum",
    option: EnvOptions = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", help="Take game and policy from a run: its best round so far."),
    ] = None,
    kernel: Annotated[int, typer.Option(min=0, help="Number of the held-out kernel.")] = 0,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest response.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of the policy's sampling.")] = 0,
) -> None:
    r"""Play the partner against a policy; your lines come from the keyboard or a pipe.

    Write boxes such as \boxed{AGREED: split=$40} as the game's rules say; end with Ctrl-D.
    """
    from iterpo.cli.games import make_game
    from iterpo.config import override
    from iterpo.domain import Role, Sampling, Split
    from iterpo.models.checkpoints import load_policy

    if run is not None:
        game, ref = _from_run(run)
    else:
        game, ref = make_game(env, override({}, option or ())), load_policy(policy)
    scenario = game.scenarios(Split.HELDOUT, kernel + 1)[kernel]
    opening = game.opening(scenario)
    say(f"You are the partner in {game.name} ({scenario.kernel_id}). What you are told:\n")
    say(game.view(scenario, Role.PARTNER, (opening,)).system + "\n")
    sampling = Sampling(temperature=temperature, max_new_tokens=max_new_tokens)
    _finish(_play(game, ref, sampling, (scenario, seed)))


def _from_run(folder: Path) -> tuple[Environment, PolicyRef]:
    from iterpo.cli.games import make_game
    from iterpo.experiments.lineage import policy_of_round
    from iterpo.experiments.results import read_run

    facts = read_run(folder)
    game = make_game(facts.plan.environment.name, facts.plan.environment.options)
    trained = len([r for r in facts.rounds if r.update])
    best = facts.best_round if facts.best_round is not None else trained
    return game, policy_of_round(folder, facts.plan, best)


def _play(game: Environment, ref: PolicyRef, sampling: Any, where: tuple[Any, int]) -> Conversation:
    import asyncio

    from iterpo.agents.base import Seat
    from iterpo.agents.local import LocalPolicy
    from iterpo.collect import Table, play
    from iterpo.domain import Role
    from iterpo.models.backbone import load

    scenario, seed = where

    def person(seat: Seat) -> _Person:  # noqa: ARG001
        return _Person()

    table = Table(game, LocalPolicy(load(ref), sampling), person, ref.id)
    return asyncio.run(play(table, Seat(scenario, Role.AGENT, ref.round, 0, seed)))


def _finish(conversation: Conversation) -> None:
    from iterpo.domain import Ending, Role

    outcome = conversation.outcome
    if outcome.detail.startswith("_Left"):
        say("\nyou left; nothing was agreed.")
        return
    if outcome.ending is Ending.INFRASTRUCTURE_FAILURE:
        remark(f"iterpo: the conversation broke off: {outcome.detail}")
        raise typer.Exit(2)
    last = conversation.turns[-1]
    if last.role is Role.AGENT and not last.scripted:
        say(f"agent> {last.text}")
    terms = ", ".join(f"{k} {v}" for k, v in outcome.terms.items())
    reward = "no reward" if outcome.reward is None else f"agent's reward {number(outcome.reward)}"
    say("\n" + "; ".join(p for p in (outcome.ending.value, terms, reward, outcome.detail) if p))
