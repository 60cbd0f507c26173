"""``iterpo play``: one conversation between two speakers, printed as it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from iterpo.cli.options import (
    SPEAKERS,
    AgentSpec,
    EnvOptions,
    Json,
    Kernel,
    MaxNewTokens,
    PartnerSpec,
    SplitName,
    Temperature,
    Threads,
    TopP,
    read_sampling,
    read_split,
)
from iterpo.cli.output import examples, facts_text, print_json, say

if TYPE_CHECKING:
    from iterpo.domain import Conversation

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "play"
EXAMPLES = examples(
    "iterpo play",
    "iterpo play ultimatum --agent oracle --kernel 3",
    "iterpo play ultimatum --agent nano --partner nano --seed 1",
    "iterpo play craigslist --option data_dir=data --agent http://localhost:8000/v1#qwen",
)

_HELP = f"Play one conversation and print it as it goes, then what it was worth.\n\n{SPEAKERS}"


def command(
    name: Annotated[str, typer.Argument(help="Game (`iterpo envs`).")] = "ultimatum",
    agent: AgentSpec = "first-counter",
    partner: PartnerSpec = "scripted",
    option: EnvOptions = None,
    kernel: Kernel = 0,
    split: SplitName = "heldout",
    seed: Annotated[int, typer.Option(help="Seed of what the speakers draw.")] = 0,
    gamma: Annotated[float, typer.Option(min=0.0, max=1.0, help="Discount of the returns.")] = 0.9,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    max_new_tokens: MaxNewTokens = 64,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Set below: the help names the speakers."""
    from iterpo.cli.aloud import check_unbroken, converse
    from iterpo.cli.games import game_for, kernel_of, use_threads
    from iterpo.cli.transcripts import print_message, print_outcome
    from iterpo.domain import Role, derive
    from iterpo.experiments.speakers import read_speaker, seat

    where = read_split(split)
    sampling = read_sampling(temperature, top_p, max_new_tokens)
    speakers = (read_speaker(agent, sampling), read_speaker(partner, sampling))
    game = game_for(name, option, speakers)
    use_threads(threads, speakers)
    seating = seat(game, *speakers, gamma=gamma)
    scenario = kernel_of(game, where, kernel)
    if not as_json:
        say(f"{game.name}, {scenario.kernel_id}: {agent} is the agent, {partner} the partner")
        say(f"{facts_text(scenario.facts)}\n")
        opening = game.opening(scenario)
        print_message(f"{opening.role.value} (opening)", opening.text)
    drawn = derive(seed, "play", scenario.kernel_id)
    conversation = converse(seating, scenario, drawn, () if as_json else tuple(Role))
    if as_json:
        print_json(_values(conversation, gamma) | {"agent": agent, "partner": partner})
    check_unbroken(conversation)
    if not as_json:
        print_outcome(conversation, gamma)


command.__doc__ = _HELP


def _values(conversation: Conversation, gamma: float) -> dict[str, Any]:
    from iterpo.cli.transcripts import Credit, as_json
    from iterpo.measure import result_record

    record = result_record(conversation, gamma)
    returns = {"agent_turn": record.return_agent_turn, "message": record.return_message}
    values = as_json(conversation, Credit(gamma, "agent_turn"))
    return values | {"environment": conversation.environment, "gamma": gamma, "returns": returns}
