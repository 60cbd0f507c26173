"""Copying drills: a message of random words and numbers, and the same message again.

A small model learns the games' formats in no time, but finds out late that a number must be copied
from the message before. Drilled first, it copies from the start, in any game.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from iterpo.domain import Message, derive
from nano_pretraining.corpus import Lesson

__all__ = ["drills"]


def drills(lessons: list[Lesson], n: int, seed: int) -> Iterator[Lesson]:
    """``n`` drills on the lessons' words, among random numbers."""
    words = sorted({w for one in lessons[:2000] for m in one.messages for w in m.content.split()})
    for i in range(n):
        rng = random.Random(derive(seed, "drill", i))
        text = " ".join(_piece(words, rng) for _ in range(rng.randint(2, 12)))
        other = " ".join(_piece(words, rng) for _ in range(rng.randint(0, 6)))
        chat = (Message("system", other), Message("user", text), Message("assistant", text))
        yield Lesson(chat, first=2)


def _piece(words: list[str], rng: random.Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(words)
    return rng.choice(("$", "", "")) + "".join(rng.choices("0123456789", k=rng.randint(1, 5)))
