"""Scripted dialogues: teachers play the games against the scripted partner and each other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from iterpo.agents.base import AgentFactory, Reply, Seat
from iterpo.agents.scripted import Bargaining, ScriptedPartner
from iterpo.collect.play import Table, play
from iterpo.domain import Conversation, Message, Role, Scenario, View, derive
from iterpo.environments.base import Environment
from nano_pretraining.kernels import GAMES, game, kernels
from nano_pretraining.position import position
from nano_pretraining.teacher import Teacher

__all__ = [
    "FIRST",
    "SECOND",
    "Course",
    "Dialogue",
    "Lesson",
    "TeacherAgent",
    "dialogues",
    "lessons",
]

SELF_PLAY = 0.2


@dataclass(frozen=True, slots=True)
class Course:
    """What a part of the training is made of."""

    shares: Mapping[str, float]
    """Dialogues by game, in relation to the others; 1 where nothing is said."""
    mindful: bool = False
    """Whether teachers mind what every single item is worth to them."""
    consents: Mapping[str, int] = field(default_factory=dict)
    """Extra lessons by game and dialogue on boxes that consent."""


FIRST = Course(
    {"craigslist": 1.2, "job_interview": 1.7, "alliance": 1.2, "ultimatum": 0.8, "casino": 0.8}
)
"""How to speak and box: long terms are learnt last."""
SECOND = Course(
    {"deal_or_no_deal": 1.8, "job_interview": 1.7, "alliance": 0.8, "ultimatum": 0.6},
    mindful=True,
    consents={"craigslist": 1, "job_interview": 2, "alliance": 1, "ultimatum": 1},
)
"""What terms are worth, and to consent to exactly what was offered."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A finished conversation and where it was played."""

    environment: Environment
    """The game."""
    scenario: Scenario
    """The kernel."""
    conversation: Conversation
    """What was said."""
    taught: tuple[Role, ...]
    """Sides that a teacher spoke for; only these are learnt from."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A chat to learn from."""

    messages: tuple[Message, ...]
    """The speaker's view, and its last reply."""
    first: int
    """Index of the speaker's first own reply; what stands before it (the opening) is given."""
    box_only: bool = False
    """Whether the words of the reply are given as well, and only its box is learnt."""


class TeacherAgent:
    """A teacher in one seat of one conversation."""

    def __init__(self, environment: Environment, seat: Seat, *, mindful: bool = False) -> None:
        """Its random draws depend on the seat's seed and role."""
        rng = random.Random(derive(seat.seed, "teacher", seat.role.value))
        wish = ""
        if seat.role is Role.PARTNER:
            wish = cast(Bargaining, environment).bargain(seat.scenario).preference
        place = position(environment, seat.scenario, seat.role, mindful=mindful)
        self._teacher = Teacher(place, rng, wish)

    async def reply(self, view: View) -> Reply:
        """The teacher's next message."""
        return Reply(self._teacher.reply(view.turns))

    def close(self) -> None:
        """Nothing to release."""


def dialogues(n_per_game: int, seed: int, course: Course = FIRST) -> Iterator[Dialogue]:
    """Play about ``n_per_game`` conversations of a game, each on a kernel and seed of its own.

    One in five is between two teachers, so that a model can learn the partner's seat without a
    word of the scripted partner, whose replies would tell what it holds back.
    """
    for name in GAMES:
        environment = game(name)

        def teacher(seat: Seat, environment: Environment = environment) -> TeacherAgent:
            return TeacherAgent(environment, seat, mindful=course.mindful)

        for i, scenario in enumerate(
            kernels(name, round(course.shares.get(name, 1.0) * n_per_game), seed)
        ):
            people = derive(seed, "partner", i)
            scripted = ScriptedPartner(cast(Bargaining, environment), partner_seed=people)
            seat = Seat(scenario, Role.AGENT, 0, i, derive(seed, "dialogue", name, i))
            alone = random.Random(derive(seed, "self-play", name, i)).random() < SELF_PLAY
            partner: AgentFactory = teacher if alone else scripted
            played = asyncio.run(play(Table(environment, teacher, partner), seat))
            taught = (Role.AGENT, Role.PARTNER) if alone else (Role.AGENT,)
            yield Dialogue(environment, scenario, played, taught)


def lessons(dialogue: Dialogue, rng: random.Random) -> list[Lesson]:
    """A lesson for each side that a teacher spoke for.

    A game with a private note shows it before the newest message only, so such a dialogue is cut
    after one of the speaker's replies: the note then stands where generation will see it.
    """
    turns = dialogue.conversation.turns
    out = []
    for role in dialogue.taught:
        spoken = [i for i, t in enumerate(turns) if t.role is role and not t.scripted]
        if not spoken:
            continue
        noted = dialogue.environment.view(dialogue.scenario, role, turns[:1]).reminder is not None
        cut = rng.choice(spoken) if noted and rng.random() < 0.5 else spoken[-1]
        view = dialogue.environment.view(dialogue.scenario, role, turns[:cut])
        messages = (*view.messages(), Message("assistant", turns[cut].text))
        out.append(Lesson(messages, spoken[0] + 1))  # the system prompt stands before the turns
    return out
