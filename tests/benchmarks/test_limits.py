"""Partners that explain a conversation as well as its own one: another draw, the same messages."""

from __future__ import annotations

from typing import Any

import pytest

from iterpo import environments
from iterpo.agents.scripted import decide
from iterpo.domain import Role, Split, Turn


@pytest.mark.parametrize(("name", "exactly"), [("ultimatum", False), ("job_interview", True)])
def test_believed_partners_would_have_said_the_same(
    learning: Any, name: str, exactly: bool
) -> None:
    limits = learning("limits")
    game: Any = environments.make(name)
    scenarios = game.scenarios(Split.HELDOUT, 20)
    scenario = max(scenarios, key=lambda s: len(game.bargain(s).aspirations))
    truth = game.bargain(scenario)
    greedy = "I want " + truth.box(truth.best(0.0), Role.AGENT)
    turns = [game.opening(scenario)]
    others = limits.Others(game)
    assert others.like(scenario, 0, turns) == list(limits.PARTNERS[:4]), "nothing is known yet"
    for _ in range(3):
        turns.append(Turn(Role.AGENT, greedy))
        turns.append(Turn(Role.PARTNER, _said(truth, turns)))
    chosen = others.like(scenario, 0, turns)
    assert chosen != list(limits.PARTNERS[:4]), "what was said tells partners apart"
    heard = [i for i, turn in enumerate(turns) if turn.role is Role.PARTNER]
    far = 0.0
    for seed in chosen:
        other = game.bargain(scenario, seed)
        if exactly:
            assert [_said(other, turns[:i]) for i in heard] == [turns[i].text for i in heard]
        pairs = zip(other.aspirations, truth.aspirations[:3], strict=False)
        far = max(far, *(abs(a - b) for a, b in pairs))
    spread = max(
        abs(game.bargain(scenario, s).aspirations[2] - truth.aspirations[2])
        for s in limits.PARTNERS
    )
    assert far < 0.25 * spread


def _said(bargain: Any, turns: list[Turn]) -> str:
    terms = decide(bargain, turns).terms
    return bargain.box(terms, Role.PARTNER) if terms is not None else ""
