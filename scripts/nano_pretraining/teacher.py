"""A party of any game that talks sensibly and bargains at random."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iterpo.agents.wording import TEMPLATES
from iterpo.domain import Role, Turn
from nano_pretraining import phrasings
from nano_pretraining.position import Position, Terms
from nano_pretraining.words import in_words, taste

__all__ = ["HABITS", "Habits", "Teacher"]


@dataclass(frozen=True, slots=True)
class Habits:
    """How a teacher bargains: competently enough to close, too carelessly to close well."""

    greed: float
    """Weight of the own value when terms are drawn, in nats over the whole range."""
    eager: float
    """How readily an offer is taken: probability = eager x (0.1 + own value)."""
    final: float
    """Probability of taking the standing offer in the last message, where nothing else closes."""
    leave: float
    """Probability of giving up, per message."""
    talk: float
    """Probability of opening with words only."""


HABITS: Mapping[str, Habits] = {
    "ultimatum": Habits(greed=2.0, eager=0.30, final=0.40, leave=0.05, talk=0.10),
    "craigslist": Habits(greed=2.0, eager=0.10, final=0.25, leave=0.11, talk=0.10),
    "deal_or_no_deal": Habits(greed=5.0, eager=0.35, final=0.40, leave=0.05, talk=0.25),
    "casino": Habits(greed=4.0, eager=0.25, final=0.35, leave=0.05, talk=0.25),
    "job_interview": Habits(greed=14.0, eager=0.28, final=0.40, leave=0.05, talk=0.25),
    "alliance": Habits(greed=2.0, eager=0.22, final=0.35, leave=0.07, talk=0.25),
}


class Teacher:
    """One side of one conversation; decides by the transcript and its own points alone."""

    def __init__(self, position: Position, rng: random.Random, preference: str = "") -> None:
        self._seat = position
        self._rng = rng
        self._habits = HABITS[position.scenario.environment]
        self._says = phrasings.of_game(position.scenario.environment)
        self._taste = taste(position)
        self._preference = preference
        self._own: Terms | None = None
        self._talked = False

    def reply(self, turns: Sequence[Turn]) -> str:
        """The next message."""
        rng, seat = self._rng, self._seat
        left = seat.own_messages_left(len(turns))
        theirs = seat.table.standing(turns, seat.role.other)
        if theirs is not None and rng.random() < self._willing(theirs, left):
            return self._say("accept", theirs, seat.table.acceptance(theirs, seat.role))
        draw = rng.random()
        if draw < self._habits.leave + 0.15 * (left == 1):
            return self._say("leave", None, "\\boxed{NO DEAL}")
        first = self._own is None and not self._talked
        quiet = self._habits.talk if first else 0.06
        if left > 2 - (not first) and not self._talked and rng.random() < quiet:
            self._talked = True
            return self._quiet(theirs)
        self._talked = False
        return self._propose(theirs)

    def _willing(self, theirs: Terms, left: int) -> float:
        if left == 1:
            return self._habits.final
        return min(0.9, self._habits.eager * (0.1 + self._seat.value(theirs)))

    def _quiet(self, theirs: Terms | None) -> str:
        if theirs is not None and self._rng.random() < 0.5:
            return self._say("reject", None, self._seat.table.rejection)
        if self._says.plain and self._rng.random() < 0.25:
            return self._say("plain", self._fresh())
        return self._say("talk")

    def _propose(self, theirs: Terms | None) -> str:
        rng, seat, own = self._rng, self._seat, self._own
        draw = rng.random()
        if own is not None and theirs is not None and draw < 0.60 and own != theirs:
            act, terms = "step", self._pick([seat.between(own, theirs, rng) for _ in range(3)])
        elif own is not None and draw < 0.72:
            act, terms = "hold", own
        elif theirs is not None and draw < 0.30:
            fresh = self._fresh()
            act, terms = "step", self._pick([seat.between(fresh, theirs, rng) for _ in range(3)])
        else:
            act, terms = "offer", self._fresh()
        if terms == theirs:
            return self._say("accept", theirs, seat.table.acceptance(theirs, seat.role))
        if terms == own:
            act = "hold"
        self._own = terms
        box = seat.table.box(terms, seat.role)
        # A rejection in the same message keeps a proposal from being read as an echo.
        anew = theirs is not None and seat.table.rejection
        return self._say(act, terms, f"{seat.table.rejection} {box}" if anew else box)

    def _fresh(self) -> Terms:
        """Random terms: mildly more often those that are worth more to this side."""
        return self._pick([self._seat.draw(self._rng) for _ in range(4)])

    def _pick(self, choices: Sequence[Terms]) -> Terms:
        weights = [math.exp(self._habits.greed * self._seat.value(terms)) for terms in choices]
        return self._rng.choices(choices, weights)[0]

    def _say(self, act: str, terms: Terms | None = None, box: str = "") -> str:
        if self._seat.role is Role.PARTNER:
            return self._say_as_partner(act, box)
        said = {} if terms is None else in_words(self._seat, terms, self._rng)
        template = self._rng.choice(getattr(self._says, act))
        return str(template.format(box=box, **said, **self._taste)).strip()

    def _say_as_partner(self, act: str, box: str) -> str:
        """In the scripted partner's words, so that a model on that side sounds like it."""
        acts = {"offer": "counter", "step": "counter", "hold": "counter", "leave": "refuse",
                "talk": "prefer" if self._preference else "chat", "plain": "chat"}  # fmt: skip
        if act == "reject" and not box:
            act = "talk"
        template = self._rng.choice(TEMPLATES["compact"][acts.get(act, act)])  # type: ignore[index]
        return template.format(box=box, words=self._preference)
