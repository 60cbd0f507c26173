"""Robustness: whatever a party says, nothing raises and nothing takes long."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from iterpo.agents.scripted import bargaining, decide
from iterpo.domain import Role, Scenario, Turn
from iterpo.environments.base import Environment
from iterpo.testing.plays import Play
from iterpo.testing.report import Findings
from iterpo.testing.speakers import GARBAGE, mangled

__all__ = ["check_robustness"]

_LONG = 100_000
_SECONDS_PER_CHARACTER = 2e-5
"""Linear work on 100 kB takes a small part of these 2 s; the slack is for slow machines."""
_SECONDS_AT_LEAST = 0.2
_DAMAGED = 20
_SHREDS = ("\\boxed{", "{", "}", "\\boxed{AGREED: ", "9", "1,", "$1 ", " ", "word ", "a=1 ", "?")


def check_robustness(
    env: Environment, scenario: Scenario, plays: Sequence[Play], findings: Findings
) -> None:
    """Garbage, damaged messages of the plays, and 100 kB of anything, by both sides."""
    said = sorted({turn.text for play in plays for turn in play.turns}, key=len)
    boxed = [text for text in said if "{" in text or any(c.isdigit() for c in text)][:_DAMAGED]
    for text in (*GARBAGE, *(bad for good in boxed for bad in mangled(good))):
        for turns in _transcripts(env, scenario, text):
            _put(env, scenario, turns, findings)
    for shred in (*_SHREDS, *boxed[:6]):
        if not _stays_fast(env, scenario, shred, findings):
            return


def _put(env: Environment, scenario: Scenario, turns: tuple[Turn, ...], findings: Findings) -> None:
    text = turns[-1].text
    with findings.calling("read or view", f"kernel {scenario.kernel_id}:", text):
        env.read(scenario, turns)
        for role in Role:
            env.view(scenario, role, turns).messages()
    game = bargaining(env)
    if game and turns[-1].role is Role.AGENT:
        with findings.calling("bargain", f"kernel {scenario.kernel_id}:", text):
            bargain = game.bargain(scenario)
            bargain.boxed_offer(text)
            bargain.plain_offer(text, turns[:-1])
            decide(bargain, turns)


def _transcripts(env: Environment, scenario: Scenario, text: str) -> Iterator[tuple[Turn, ...]]:
    first = env.opening(scenario)
    yield (first, Turn(Role.PARTNER, text))
    yield (first, Turn(Role.PARTNER, "Hm."), Turn(Role.AGENT, text))
    yield (first, *(Turn(Role.AGENT if i % 2 else Role.PARTNER, text) for i in range(4)))


def _stays_fast(env: Environment, scenario: Scenario, shred: str, findings: Findings) -> bool:
    """Sizes grow step by step, so that a quadratic reader is stopped before it takes hours."""
    for size in (_LONG // 100, _LONG // 10, _LONG):
        *_, turns = _transcripts(env, scenario, shred * (size // max(len(shred), 1) + 1))
        start = time.process_time()
        _put(env, scenario, turns, findings)
        took = time.process_time() - start
        if not findings.expect(
            f"robustness: {_LONG // 1000} kB are read in linear time",
            took < max(_SECONDS_AT_LEAST, _SECONDS_PER_CHARACTER * size),
            f"{size} characters of {shred[:40]!r} took {took:.1f} s",
        ):
            return False
    return True
