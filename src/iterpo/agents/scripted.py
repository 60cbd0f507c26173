"""The scripted partner: a fast, repeatable rule-based bargainer with a known upper bound J*.

It knows no game. A game hands it a ``Bargain``: what terms are worth, which are live, how they are
written. It decides from the transcript and its private draw alone, by utility, and is not moved
by arguments.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from iterpo.agents.base import Agent, Reply, Seat
from iterpo.agents.wording import TEMPLATES, SpeechAct, Style
from iterpo.domain import Role, Scenario, Turn, View
from iterpo.errors import ConfigError

__all__ = ["Bargain", "Bargaining", "Move", "ScriptedPartner", "Terms", "bargaining", "decide"]

Terms = Any
"""Terms of a deal as the game represents them; opaque here."""


class Bargain(Protocol):
    """One scenario and one private draw, seen from the partner's side."""

    @property
    def code(self) -> int:
        """Number of the environment, for the wording's seed."""
        ...

    @property
    def style(self) -> Style:
        """Wording of the messages."""
        ...

    @property
    def aspirations(self) -> tuple[float, ...]:
        """alpha_k, what the partner asks for at its k-th message, k = 1..K."""
        ...

    @property
    def talks_first(self) -> bool:
        """Whether message 1 only states preferences, without a box."""
        ...

    @property
    def preference(self) -> str:
        """The true preference in words; empty where there is none."""
        ...

    @property
    def rejection(self) -> str:
        """Box that keeps a proposal from being read as an echo; empty under rule A."""
        ...

    def standing(self, turns: Sequence[Turn], role: Role) -> Terms | None:
        """Live boxed offer of a side."""
        ...

    def boxed_offer(self, text: str) -> Terms | None:
        """Terms that a message of the agent boxes."""
        ...

    def plain_offer(self, text: str, turns: Sequence[Turn]) -> Terms | None:
        """Terms that a message of the agent offers in words; ``turns`` came before it."""
        ...

    def worth(self, terms: Terms) -> float:
        """Utility of the partner."""
        ...

    def counter(
        self, aspiration: float, towards: Terms | None, standing: Terms | None
    ) -> Terms | None:
        """Nearest terms to the agent's among those worth the aspiration."""
        ...

    def clashes(self, terms: Terms, standing: Terms | None) -> bool:
        """Whether boxing the terms would read as an echo of the agent's standing offer."""
        ...

    def best(self, aspiration: float) -> Terms:
        """The agent's favourite among terms worth the aspiration."""
        ...

    def reach(self, aspiration: float) -> float:
        """M(a): the agent's reward at ``best``."""
        ...

    def box(self, terms: Terms, role: Role) -> str:
        """Box that proposes the terms."""
        ...

    def acceptance(self, terms: Terms, role: Role) -> str:
        """Box that closes at the other side's standing terms."""
        ...

    def draw_terms(self, rng: Any) -> Terms:
        """Any valid terms."""
        ...

    def j_star(self, gamma: float) -> Mapping[str, float]:
        """Best attainable return by discount unit; empty where it is unknown."""
        ...


class Bargaining(Protocol):
    """An environment that scripted agents can play."""

    def bargain(self, scenario: Scenario, partner_seed: int = 0) -> Bargain:
        """The partner's side of a scenario."""
        ...


def bargaining(environment: object) -> Bargaining | None:
    """An environment as one that scripted agents can play; None if it offers no bargain."""
    offers = callable(getattr(environment, "bargain", None))
    return cast(Bargaining, environment) if offers else None


@dataclass(frozen=True, slots=True)
class Move:
    """What the partner does next."""

    act: SpeechAct
    """Kind of message."""
    terms: Terms | None = None
    """Terms accepted or proposed."""
    anew: bool = False
    """Whether a rejection precedes the box, so that it is no echo."""


_CONSENT = re.compile(r"\b(?:deal|agreed?|accept|yes|ok|okay|fine|sounds good)\b", re.IGNORECASE)
_ASKED = re.compile(
    r"\b(?:prefer\w*|values?|wants?|needs?|likes?|loves?|most|least|important|matters?|interest\w*"
    r"|priorit\w+|rank\w*|favou?r\w*|care)\b|\b(?:you|yours)$",
    re.IGNORECASE,
)


def decide(bargain: Bargain, turns: Sequence[Turn]) -> Move:
    """The partner's next move, by its aspiration (accept, box, leave or counter).

    Args:
        bargain: The partner's side of the scenario.
        turns: Transcript, opening first.
    """
    k = 1 + sum(turn.role is Role.PARTNER for turn in turns)
    last = k >= len(bargain.aspirations)
    alpha = bargain.aspirations[min(k, len(bargain.aspirations)) - 1]
    spoken = [t.text for t in turns if t.role is Role.AGENT and not t.scripted]
    newest = spoken[-1] if spoken and turns[-1].role is Role.AGENT else ""
    standing = bargain.standing(turns, Role.AGENT)
    if standing is not None and bargain.worth(standing) >= alpha:
        return Move("accept", standing)
    plain = bargain.plain_offer(newest, turns[:-1]) if newest else None
    if plain is not None and bargain.worth(plain) >= alpha:
        return Move("nudge", plain, anew=bargain.clashes(plain, standing))
    latest = _latest_offer(bargain, turns)
    if last and latest is None:
        return Move("refuse")
    if k == 1 and bargain.talks_first:
        return Move("prefer")
    terms = bargain.counter(alpha, latest, standing)
    if terms is None:
        return Move("reject")
    if k == 1:
        return Move("greet", terms)
    if last:
        return Move("last", terms)
    unboxed = bargain.boxed_offer(newest) is None
    hint = plain is not None or "\\boxed" in newest or _CONSENT.search(newest) is not None
    return Move("nudge" if unboxed and hint else "counter", terms)


def _latest_offer(bargain: Bargain, turns: Sequence[Turn]) -> Terms | None:
    for i in range(len(turns) - 1, -1, -1):
        turn = turns[i]
        if turn.role is not Role.AGENT or turn.scripted:
            continue
        offer = bargain.boxed_offer(turn.text)
        if offer is None:
            offer = bargain.plain_offer(turn.text, turns[:i])
        if offer is not None:
            return offer
    return None


def _asks(text: str) -> bool:
    """Whether a message asks for the reader's preferences."""
    questions = (re.split(r"[.!\n]", part)[-1] for part in text.split("?")[:-1])
    return any(_ASKED.search(question) for question in questions)


@dataclass(frozen=True)
class ScriptedPartner:
    """Gives every conversation a scripted partner; an ``AgentFactory`` for the partner's seat."""

    game: Bargaining
    """Environment being played."""
    partner_seed: int = 0
    """Names the population of partners; private values are drawn from it per kernel."""

    def __post_init__(self) -> None:
        if bargaining(self.game) is None:
            raise ConfigError(
                f"{type(self.game).__name__} offers no scripted partner (it has no bargain()); "
                "seat a model or a person as the partner"
            )

    def __call__(self, seat: Seat) -> Agent:
        """The partner of one conversation; its wording depends on ``seat.replica``."""
        if seat.role is not Role.PARTNER:
            raise ConfigError(
                f"a scripted partner can't sit in the {seat.role.value!r} seat; "
                "seat it as 'partner', or play the agent with a policy or a yardstick"
            )
        return _Partner(self.game.bargain(seat.scenario, self.partner_seed), self, seat)

    def j_star(self, scenario: Scenario, gamma: float) -> dict[str, float]:
        """Best return that any agent can reach against this partner, by discount unit.

        Where it is known, ``gamma`` stands beside it: J* and J compare at one gamma only.
        """
        best = dict(self.game.bargain(scenario, self.partner_seed).j_star(gamma))
        return best and best | {"gamma": gamma}


class _Partner:
    def __init__(self, bargain: Bargain, factory: ScriptedPartner, seat: Seat) -> None:
        self._bargain = bargain
        kernel = zlib.crc32(seat.scenario.kernel_id.encode())
        self._seed = [factory.partner_seed, bargain.code, kernel, seat.replica]

    async def reply(self, view: View) -> Reply:
        """The next message, from the transcript and the private draw."""
        return Reply(self._say(decide(self._bargain, view.turns), view.turns))

    def close(self) -> None:
        """Nothing to release."""

    def _say(self, move: Move, turns: Sequence[Turn]) -> str:
        import numpy as np  # importing the agents stays light

        bargain = self._bargain
        k = 1 + sum(turn.role is Role.PARTNER for turn in turns)
        templates = TEMPLATES[bargain.style][move.act]
        rng = np.random.default_rng([*self._seed, k])
        template = templates[int(rng.integers(len(templates)))]
        text = template.format(box=self._box(move), words=bargain.preference)
        newest = turns[-1]
        asked = k > 1 and newest.role is Role.AGENT and _asks(newest.text)
        if asked and bargain.preference and move.act in ("counter", "nudge", "last", "reject"):
            return f"{bargain.preference}. {text}"
        return text

    def _box(self, move: Move) -> str:
        if move.act == "refuse":
            return "\\boxed{NO DEAL}"
        if move.act == "reject":
            return self._bargain.rejection
        if move.terms is None:
            return ""
        if move.act == "accept":
            return self._bargain.acceptance(move.terms, Role.PARTNER)
        box = self._bargain.box(move.terms, Role.PARTNER)
        return f"{self._bargain.rejection} {box}" if move.anew else box
