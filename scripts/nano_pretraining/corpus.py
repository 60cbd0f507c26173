"""Scripted dialogues: teachers play the games against the scripted partner; no data set is read."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from iterpo.agents.base import AgentFactory, Reply, Seat
from iterpo.agents.scripted import Bargaining, ScriptedPartner
from iterpo.collect.play import Table, play
from iterpo.domain import Conversation, Message, Role, Scenario, Split, View, derive
from iterpo.environments import make
from iterpo.environments.base import Environment
from nano_pretraining.dond_teacher import DondTeacher
from nano_pretraining.ultimatum_teacher import UltimatumTeacher

__all__ = ["GAMES", "Dialogue", "TeacherAgent", "dialogues", "game", "generated_dond", "lessons"]

GAMES = ("ultimatum", "deal_or_no_deal")


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A finished conversation and where it was played."""

    environment: Environment
    """The game."""
    scenario: Scenario
    """The kernel."""
    conversation: Conversation
    """What was said."""


class TeacherAgent:
    """A teacher in the agent's seat of one conversation."""

    def __init__(self, seat: Seat) -> None:
        rng = random.Random(derive(seat.seed, "teacher"))
        facts = seat.scenario.facts
        self._teacher: UltimatumTeacher | DondTeacher
        if seat.scenario.environment == "ultimatum":
            self._teacher = UltimatumTeacher(facts["pool"], facts["rounds"], rng)
        else:
            self._teacher = DondTeacher(
                tuple(facts["counts"]), tuple(facts["agent_values"]), 10, rng
            )

    async def reply(self, view: View) -> Reply:
        """The teacher's next message."""
        return Reply(self._teacher.reply(view.turns))

    def close(self) -> None:
        """Nothing to release."""


def game(name: str) -> Environment:
    """A game in the compact prompt style."""
    return make(name, prompt_style="compact")


def generated_dond(n: int, seed: int) -> tuple[Scenario, ...]:
    """Invented Deal or No Deal kernels in the layout of the data: 5 to 7 items, 10 points each."""
    return tuple(_dond_kernel(random.Random(derive(seed, "dond", i))) for i in range(n))


def dialogues(n_per_game: int, seed: int, agent: AgentFactory = TeacherAgent) -> Iterator[Dialogue]:
    """Play ``n_per_game`` conversations of every game, each on a kernel and seed of its own."""
    for name in GAMES:
        environment = game(name)
        for i, scenario in enumerate(_kernels(name, environment, n_per_game, seed)):
            people = derive(seed, "partner", i)
            partner = ScriptedPartner(cast(Bargaining, environment), partner_seed=people)
            seat = Seat(scenario, Role.AGENT, 0, i, derive(seed, "dialogue", name, i))
            table = Table(environment, agent, partner)
            yield Dialogue(environment, scenario, asyncio.run(play(table, seat)))


def lessons(dialogue: Dialogue, rng: random.Random, partner_share: float) -> list[list[Message]]:
    """Chats to learn from: the agent's view, and now and then the partner's.

    A game with a private note shows it before the newest message only, so such a dialogue is cut
    after one of the speaker's replies: the note then stands where generation will see it.
    """
    turns = dialogue.conversation.turns
    roles = [Role.AGENT] + ([Role.PARTNER] if rng.random() < partner_share else [])
    out = []
    for role in roles:
        spoken = [i for i, t in enumerate(turns) if t.role is role and not t.scripted]
        if not spoken:
            continue
        noted = dialogue.environment.view(dialogue.scenario, role, turns[:1]).reminder is not None
        cut = rng.choice(spoken) if noted and rng.random() < 0.5 else spoken[-1]
        view = dialogue.environment.view(dialogue.scenario, role, turns[:cut])
        out.append([*view.messages(), Message("assistant", turns[cut].text)])
    return out


def _kernels(name: str, environment: Environment, n: int, seed: int) -> Sequence[Scenario]:
    if name != "ultimatum":
        return generated_dond(n, seed)
    return environment.scenarios(Split.TRAIN, n)


def _dond_kernel(rng: random.Random) -> Scenario:
    while True:
        counts = tuple(rng.choice((1, 1, 1, 2, 2, 3, 4)) for _ in range(3))
        if 5 <= sum(counts) <= 7:
            break
    agent, partner = (rng.choice(_valuations(counts)) for _ in range(2))
    facts = {"counts": list(counts), "agent_values": list(agent), "partner_values": list(partner)}
    name = "|".join(",".join(map(str, t)) for t in (counts, agent, partner))
    return Scenario(f"dond-{name}", "deal_or_no_deal", Split.TRAIN, facts)


@lru_cache(maxsize=256)
def _valuations(counts: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """All values per item that make the whole pool worth 10 points."""
    return tuple(
        values
        for values in itertools.product(range(11), repeat=3)
        if sum(c * v for c, v in zip(counts, values, strict=True)) == 10
    )
