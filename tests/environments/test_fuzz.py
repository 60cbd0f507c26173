"""Hostile messages to every game: no exception, linear time; only scenario and words count."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import invented
from iterpo import environments
from iterpo.agents.scripted import decide
from iterpo.domain import Role, Sampled, Sampling, Scenario, Split, Turn
from iterpo.environments import boxed

GAMES = environments.names()

SHREDS = [
    "\\boxed{",
    "\\boxed {",
    "\\boxed\u00a0{",
    "\\boxed",
    "\\Boxed{",
    "\\\\boxed{",
    "\\text{",
    "\\textbf{",
    "\\mathrm{",
    "{",
    "}",
    "}}",
    "{}",
    "\\}",
    "\\{",
    "AGREED:",
    "agreed",
    "AGREED",
    "ACCEPT",
    "accept.",
    "ACCEPTED",
    "REJECT",
    "NO DEAL",
    "no-deal!",
    "NODEAL",
    "MINE:",
    "THEIRS:",
    ";",
    ",",
    "=",
    ":",
    "$",
    "\\$",
    "<",
    ">",
    "€",
    "%",
    "-",
    "0",
    "1",
    "007",
    "9" * 40,
    "1e9",
    "½",
    "٣",
    "１２",
    "²",
    "1,250",
    "1,25",
    "33.333",
    "split=",
    "book=1",
    "hat=1",
    "ball=1",
    "Food=3",
    "Water=0",
    "Firewood=3",
    "Salary=45",
    "Holiday=4",
    "Weekly Holiday",
    "Workplace=Seoul",
    "Company=Google",
    "Position=Designer",
    "A=1",
    "B2",
    "C=C3",
    "D=",
    "E=5",
    "I keep two books and the hat",
    "you get $40",
    "I'll take 3 food",
    "for me, you take all the water",
    "What do you value most?",
    " ",
    "\n",
    "\t",
    "\u2003",
    "\u200b",
    "\ufeff",
    "\x00",
    "\x1c",
    "İ",
    "ß",
    "ﬁ",
    "K",
    "😀",
]


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, tuple[Scenario, ...]]]:
    """Every game with some of its kernels."""
    folder = tmp_path_factory.mktemp("data")
    games = {name: invented.game(name, folder) for name in GAMES}
    return {name: (env, env.scenarios(Split.TRAIN, 5)) for name, env in games.items()}


def _transcript(env: Any, scenario: Scenario, messages: list[str]) -> tuple[Turn, ...]:
    turns = [env.opening(scenario)]
    for i, text in enumerate(messages):
        turns.append(Turn(Role.AGENT if i % 2 else Role.PARTNER, text))
    return tuple(turns)


def _mutated(text: str, cuts: list[tuple[float, float, str]]) -> str:
    """The text with parts replaced by shreds."""
    for begin, length, shred in cuts:
        at = int(begin * len(text))
        text = text[:at] + shred + text[at + int(length * 8) :]
    return text


UNIT = st.floats(0, 1, allow_nan=False)
CUTS = st.lists(st.tuples(UNIT, UNIT, st.sampled_from(SHREDS)), max_size=3)
SALAD = st.lists(st.sampled_from(SHREDS) | st.text(max_size=4), max_size=14).map("".join)
# A number draws valid terms, whose box is then mutated; text is thrown as it is.
MESSAGES = st.lists(SALAD | st.tuples(st.integers(0, 999), CUTS), min_size=1, max_size=11)


@pytest.mark.parametrize("name", GAMES)
@settings(deadline=None, max_examples=150)
@given(kernel=st.integers(0, 4), messages=MESSAGES)
def test_no_message_breaks_a_game(
    played: dict[str, Any], name: str, kernel: int, messages: list[Any]
) -> None:
    env, kernels = played[name]
    scenario = kernels[kernel]
    bargain = env.bargain(scenario)

    def text(m: Any, i: int) -> str:
        if isinstance(m, str):
            return m
        terms = bargain.draw_terms(np.random.default_rng(m[0]))
        return _mutated(bargain.box(terms, Role.AGENT if i % 2 else Role.PARTNER), m[1])

    turns = _transcript(env, scenario, [text(m, i) for i, m in enumerate(messages)])
    ended = None
    for n in range(1, len(turns) + 1):
        outcome = env.read(scenario, turns[:n])
        assert outcome == env.read(scenario, list(turns[:n]))
        assert ended is None or outcome == ended, "what follows the end changes nothing"
        ended = ended or outcome
        if n > 1:
            bargain.plain_offer(turns[n - 1].text, turns[: n - 1])
            bargain.boxed_offer(turns[n - 1].text)
        if outcome is None and turns[n - 1].role is Role.AGENT:
            decide(bargain, turns[:n])
        for role in Role:
            env.view(scenario, role, turns[:n]).messages()
    evidence = Sampled((1,), (-0.5,), Sampling(), "0", 3, "r0-00000000", "stop")
    marked = [dataclasses.replace(t, sampled=evidence, off_policy=True) for t in turns]
    assert env.read(scenario, marked) == env.read(scenario, turns)


MONSTERS = {
    "open boxes": "\\boxed{",
    "open wrappers": "\\boxed{\\text{",
    "open braces": "{",
    "closed braces": "}",
    "nested boxes": ("\\boxed{", "}"),
    "empty boxes": "\\boxed{}",
    "boxes of blanks": "\\boxed{ AGREED :  }",
    "agreed": "\\boxed{AGREED: ",
    "one long box": ("\\boxed{AGREED: " + "a" * 50_000, "}"),
    "blanks": " ",
    "line breaks": "\n",
    "digits": "9",
    "commas": "1,",
    "thousands": ",000",
    "dollars": "$",
    "amounts": "$1,000 ",
    "amounts and words": "I keep $10, you get $20 and ",
    "questions": "what do you want?",
    "question marks": "?",
    "dots": ".",
    "words": "word ",
    "one word": "a",
    "one box of items": ("\\boxed{AGREED: MINE: " + "book=1 " * 10_000, "}"),
    "one box of letters": ("\\boxed{AGREED: " + "A=1 " * 20_000, "}"),
    "one box of keys": ("\\boxed{AGREED: " + "Salary=45 Holiday=4 " * 5_000, "}"),
    "one box of a split": ("\\boxed{AGREED: split=" + "1" * 90_000, "}"),
    "claims": "I take two books and you get the hat and ",
    "claims without end": "I'll take the ",
    "numbers": "two three 4 ",
    "items": "books hats food water A1 Salary Tokyo ",
    "option pairs": "A=1 B2 ",
    "equals": "=",
    "colons": "MINE: THEIRS: ",
    "unicode digits": "٣１²",
}


@pytest.mark.timeout(30)  # linear work takes milliseconds; quadratic work on 400 kB takes minutes
@pytest.mark.parametrize("size", [100_000, 400_000])
@pytest.mark.parametrize("monster", MONSTERS)
@pytest.mark.parametrize("name", GAMES)
def test_a_huge_message_takes_linear_time(
    played: dict[str, Any], name: str, monster: str, size: int
) -> None:
    env, kernels = played[name]
    scenario = kernels[0]
    shred = MONSTERS[monster]
    if isinstance(shred, tuple):
        times = max(1, size // (len(shred[0]) + len(shred[1])))
        text = shred[0] * times + shred[1] * times
    else:
        text = shred * (size // len(shred))
    assert boxed.outside(text) is not None
    turns = _transcript(env, scenario, ["hm", text, text, text])
    env.read(scenario, turns)
    bargain = env.bargain(scenario)
    bargain.plain_offer(text, turns[:2])
    bargain.boxed_offer(text)
    decide(bargain, turns[:3])
