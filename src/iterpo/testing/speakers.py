"""Speakers that no game expects: silent, rambling, and one that says anything it has heard."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from iterpo.agents.base import Reply, Seat
from iterpo.domain import View, derive

__all__ = ["GARBAGE", "Parrot", "Rambler", "Silent", "mangled"]

GARBAGE: tuple[str, ...] = (
    "",
    " \n\t ",
    "Hm.",
    "\\boxed{",
    "\\boxed{AGREED: ",
    "\\boxed{\\text{AGREED: 1}",
    "\\boxed{}",
    "\\boxed{AGREED:}",
    "\\boxed{AGREED: 0}",
    "\\boxed{AGREED: -1}",
    "\\boxed{AGREED: ٣}",
    "\\boxed{AGREED: ²}",
    "\\boxed{ACCEPT} \\boxed{REJECT}",
    "\\boxed{NO DEAL} \\boxed{AGREED: 1",
    "²",
    "١٢٣",
    "１２",
    "½ of it, ok? $1,2,3.4.5",
    "9" * 400,
    "1e999 nan inf -0 0x10",
    "{%s} {0} {name} %d $HOME \\1",
    "]}>)\"'`\\",
    "İﬁß\u200b\ufeff\u2028\x00\x1c",
    "😀" * 50,
    "yes no accept reject agree deal walk away",
)
"""Messages that must do no harm."""


def mangled(text: str) -> tuple[str, ...]:
    """The message, damaged in the ways in which models damage messages."""
    arabic = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")
    raised = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
    return (
        text[: len(text) // 2],
        text[len(text) // 2 :],
        text.replace("}", ""),
        text.replace("{", "{{"),
        text.translate(arabic),
        text.translate(raised),
        text.upper(),
        f"{text} {text}",
        re.sub(r"\d+", lambda m: m.group() + "0" * 30, text),
        re.sub(r"[=:,;]", " ", text),
    )


class Silent:
    """Says nothing; an ``AgentFactory`` and its agent in one, as all speakers here."""

    def __init__(self, seat: Seat) -> None:
        """A silent party."""

    async def reply(self, view: View) -> Reply:  # noqa: ARG002
        """An empty message."""
        return Reply("")

    def close(self) -> None:
        """Nothing to release."""


class Rambler:
    """Talks at length about nothing, with every kind of odd character."""

    def __init__(self, seat: Seat) -> None:
        """A rambling party."""
        self._seed = derive(seat.seed, "rambler", seat.role.value)

    async def reply(self, view: View) -> Reply:
        """A few pieces of garbage in one message."""
        rng = random.Random(derive(self._seed, len(view.turns)))
        return Reply(" and ".join(rng.choices(GARBAGE, k=rng.randint(1, 4))))

    def close(self) -> None:
        """Nothing to release."""


class Parrot:
    """Repeats pieces of what it has been told and has heard, sometimes damaged.

    The rules of a game hold the very words that the game listens to.
    """

    def __init__(self, seat: Seat) -> None:
        """A party that repeats things."""
        self._seed = derive(seat.seed, "parrot", seat.role.value)

    async def reply(self, view: View) -> Reply:
        """A box or a sentence from the instructions or the transcript."""
        rng = random.Random(derive(self._seed, len(view.turns)))
        said = rng.choice(_pieces([view.system, *(t.text for t in view.turns)]))
        return Reply(rng.choice(mangled(said)) if rng.random() < 0.3 else said)

    def close(self) -> None:
        """Nothing to release."""


def _pieces(texts: Sequence[str]) -> list[str]:
    pieces = []
    for text in texts:
        boxes = re.findall(r"\\boxed\s*\{[^{}]{0,200}\}", text)
        pieces += [*boxes, *boxes, *re.split(r"(?<=[.!?\n])\s+", text)]
    return pieces or [""]
