"""A player that tries everything, move by move: not even it gets more than J* from the partner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from agents.conftest import NO_DATA, now
from iterpo.agents.base import Seat
from iterpo.agents.scripted import ScriptedPartner, _latest_offer
from iterpo.domain import Outcome, Role, Scenario, Turn

GAMMA = 0.9


def _in_words(env: Any, bargain: Any, terms: Any) -> str:
    if env.name == "craigslist":
        return f"I could do ${terms / 100:.2f}"
    if env.name == "ultimatum":
        return f"I want ${terms / 100:.2f}"
    if env.name in ("job_interview", "alliance"):
        return str(bargain.agenda.written(terms))
    plural = "s" if env.name == "deal_or_no_deal" else ""
    items = zip(bargain.game.items, terms, strict=True)
    return "I take " + " and ".join(f"{n} {item.lower()}{plural}" for item, n in items)


class Adversary:
    """Searches all plays over a set of offers, boxed and plain, echoes, consent and refusals."""

    def __init__(self, env: Any, kernel: Scenario, seed: int) -> None:
        self.env, self.kernel, self.bargain = env, kernel, env.bargain(kernel, seed)
        self.partner = ScriptedPartner(env, seed)(Seat(kernel, Role.PARTNER, 0, 0, 0))
        rng = np.random.default_rng(0)
        offers = [self.bargain.best(alpha) for alpha in self.bargain.aspirations]
        self.offers = list(dict.fromkeys([*offers, self.bargain.draw_terms(rng)]))
        self.seen: set[Any] = set()
        self.best = {"agent_turn": 0.0, "message": 0.0}

    def search(self, turns: tuple[Turn, ...]) -> dict[str, float]:
        """Best return by unit of all that can follow the agent's latest message."""
        reply = now(self.partner.reply(self.env.view(self.kernel, Role.PARTNER, turns)))
        turns = (*turns, reply.turn(Role.PARTNER))
        if not self._scored(turns):
            mine, theirs = (self.bargain.standing(turns, role) for role in Role)
            # What the partner does next depends on nothing else.
            state = (len(turns), mine, theirs, _latest_offer(self.bargain, turns))
            if state not in self.seen:
                self.seen.add(state)
                for text in dict.fromkeys(self._messages(turns, theirs)):
                    said = (*turns, Turn(Role.AGENT, text))
                    if not self._scored(said):
                        self.search(said)
        return self.best

    def _messages(self, turns: tuple[Turn, ...], theirs: Any) -> Iterator[str]:
        b, reject = self.bargain, "\\boxed{REJECT}"
        yield from ("Hm.", "ok, deal!", "What do you want most?", reject, turns[-1].text)
        yield "\\boxed{ACCEPT}"
        if theirs is not None:
            yield from (b.box(theirs, Role.AGENT), b.box(theirs, Role.PARTNER))
        for terms in self.offers:
            words, box = _in_words(self.env, b, terms), b.box(terms, Role.AGENT)
            assert b.plain_offer(words, turns) == terms or not any(np.atleast_1d(terms))
            yield from (box, f"{reject} {box}", b.box(terms, Role.PARTNER))
            yield from (words, f"{words} {reject}")

    def _scored(self, turns: tuple[Turn, ...]) -> Outcome | None:
        outcome: Outcome | None = self.env.read(self.kernel, turns)
        if outcome is not None and outcome.reward is not None:
            actions = sum(t.role is Role.AGENT for t in turns) - 1
            for unit, power in (("agent_turn", max(actions - 1, 0)), ("message", len(turns) - 1)):
                self.best[unit] = max(self.best[unit], GAMMA**power * outcome.reward)
        return outcome


@pytest.mark.parametrize("name", NO_DATA)
def test_no_play_at_all_gets_more_than_j_star_and_one_gets_it(game: Any, name: str) -> None:
    env, kernels = game(name, "full", 3)
    for seed, kernel in enumerate(kernels):
        found = Adversary(env, kernel, seed).search((env.opening(kernel),))
        bound = ScriptedPartner(env, seed).j_star(kernel, GAMMA)
        assert found["agent_turn"] == pytest.approx(bound["agent_turn"], abs=1e-9)
        assert found["message"] <= bound["message"] + 1e-9
