"""Fixed agents to measure policies against: the optimum, the easy way out, and chance.

They play any game that offers a ``Bargain``. Only ``Oracle`` knows the partner's private draw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from iterpo.agents.base import Agent, Reply, Seat
from iterpo.agents.scripted import Bargain, Bargaining
from iterpo.agents.wording import TEMPLATES, SpeechAct
from iterpo.domain import Role, View, derive
from iterpo.errors import ConfigError

__all__ = ["FirstCounter", "Oracle", "RandomOffer"]

_Choose = Callable[[int, View], tuple[SpeechAct, str]]
"""(action index t, view) -> act and box."""


@dataclass(frozen=True)
class Oracle:
    """Attains J* (``agent_turn``): talks until the best moment, then boxes the best offer."""

    game: Bargaining
    """Environment being played."""
    partner_seed: int = 0
    """Seed of the scripted partner that it reads like a book."""
    gamma: float = 0.9
    """Discount per agent action."""

    def __call__(self, seat: Seat) -> Agent:
        """An oracle for one seat."""
        bargain = self.game.bargain(seat.scenario, self.partner_seed)
        alphas = bargain.aspirations
        best_t = max(
            range(1, len(alphas)),
            key=lambda t: (self.gamma ** (t - 1) * bargain.reach(alphas[t]), -t),
            default=0,
        )

        def choose(t: int, view: View) -> tuple[SpeechAct, str]:
            if best_t == 0:
                return _accepting(bargain, view)
            if t < best_t:
                return "chat", ""
            box = bargain.box(bargain.best(alphas[best_t]), Role.AGENT)
            # Without the rejection the box may read as an echo of the partner's standing one.
            return "offer", f"{bargain.rejection} {box}".strip()

        return _Yardstick(seat, bargain, choose)


@dataclass(frozen=True)
class FirstCounter:
    """Accepts the first offer that the partner boxes, and only talks until then."""

    game: Bargaining
    """Environment being played."""

    def __call__(self, seat: Seat) -> Agent:
        """An agent for one seat."""
        bargain = self.game.bargain(seat.scenario)
        return _Yardstick(seat, bargain, lambda _, view: _accepting(bargain, view))


@dataclass(frozen=True)
class RandomOffer:
    """Draws valid terms at random and boxes them; now and then talks, accepts or leaves."""

    game: Bargaining
    """Environment being played."""

    def __call__(self, seat: Seat) -> Agent:
        """An agent for one seat."""
        bargain = self.game.bargain(seat.scenario)

        def choose(t: int, view: View) -> tuple[SpeechAct, str]:
            import numpy as np  # importing the agents stays light

            rng = np.random.default_rng(derive(seat.seed, "random offer", t))
            what = rng.random()
            if what < 0.15:
                return "chat", ""
            if what < 0.18:
                return "refuse", "\\boxed{NO DEAL}"
            if what < 0.35:
                return _accepting(bargain, view)
            anew = f"{bargain.rejection} " if bargain.rejection and rng.random() < 0.5 else ""
            return "offer", anew + bargain.box(bargain.draw_terms(rng), Role.AGENT)

        return _Yardstick(seat, bargain, choose)


def _accepting(bargain: Bargain, view: View) -> tuple[SpeechAct, str]:
    terms = bargain.standing(view.turns, Role.PARTNER)
    return ("chat", "") if terms is None else ("accept", bargain.acceptance(terms, Role.AGENT))


class _Yardstick:
    def __init__(self, seat: Seat, bargain: Bargain, choose: _Choose) -> None:
        if seat.role is not Role.AGENT:
            raise ConfigError(
                f"a yardstick plays the agent, not the {seat.role.value!r}; "
                "seat a scripted partner there"
            )
        self._seat = seat
        self._templates = TEMPLATES[bargain.style]
        self._choose = choose

    async def reply(self, view: View) -> Reply:
        """The next message."""
        own = sum(turn.role is Role.AGENT and not turn.scripted for turn in view.turns)
        act, box = self._choose(own + 1, view)
        templates = self._templates[act]
        pick = derive(self._seat.seed, "yardstick", own + 1) % len(templates)
        return Reply(templates[pick].format(box=box, words=""))

    def close(self) -> None:
        """Nothing to release."""
