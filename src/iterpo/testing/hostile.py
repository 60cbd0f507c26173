"""Robustness: whatever a party says, nothing raises and nothing takes long."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from iterpo.agents.scripted import decide
from iterpo.domain import Role, Scenario, Turn
from iterpo.environments.base import Environment
from iterpo.testing.plays import Play, bargaining
from iterpo.testing.report import Findings
from iterpo.testing.speakers import GARBAGE, mangled

__all__ = ["check_robustness"]

_LONG = 100_000
_SECONDS = 2.0
"""Linear work on 100 kB takes milliseconds; the slack is for slow and busy machines."""
_SHREDS = ("\\boxed{", "{", "}", "\\boxed{AGREED: ", "9", "1,", "$1 ", " ", "word ", "a=1 ", "?")


def check_robustness(
    env: Environment, scenario: Scenario, plays: Sequence[Play], findings: Findings
) -> None:
    """Garbage, damaged messages of the plays, and 100 kB of anything, by both sides."""
    said = sorted({turn.text for play in plays for turn in play.turns}, key=len)[:60]
    boxed = [text for text in said if "{" in text or any(c.isdigit() for c in text)]
    for text in (*GARBAGE, *(bad for good in boxed for bad in mangled(good))):
        _say(env, scenario, text, findings)
    for shred in (*_SHREDS, *boxed[:6]):
        if not _stays_fast(env, scenario, shred, findings):
            return


def _say(env: Environment, scenario: Scenario, text: str, findings: Findings) -> None:
    for turns in _transcripts(env, scenario, text):
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
        start = time.process_time()
        _say(env, scenario, shred * (size // max(len(shred), 1) + 1), findings)
        took = time.process_time() - start
        if not findings.expect(
            f"robustness: {_LONG // 1000} kB are read in linear time",
            took < _SECONDS,
            f"{size} characters of {shred[:40]!r} took {took:.1f} s",
        ):
            return False
    return True
