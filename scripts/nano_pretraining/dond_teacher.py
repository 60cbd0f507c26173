"""A party of Deal or No Deal that talks sensibly and bargains at random."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Sequence

from iterpo.domain import Role, Turn

__all__ = ["DondTeacher", "Triple"]

Triple = tuple[int, int, int]
"""Books, hats, balls."""

_ITEMS = ("book", "hat", "ball")
_SIDE = r"book=(\d) hat=(\d) ball=(\d)"
_BOX = re.compile(rf"\\boxed\{{AGREED: MINE: {_SIDE}; THEIRS: {_SIDE}\}}")

_PROPOSE = (
    "I take {mine}. {box}",
    "I get {mine}, you get the rest. {box}",
    "How about this split? {box}",
    "Here is my proposal. {box}",
    "I would like {mine}. {box}",
    "You get {theirs}. {box}",
    "I think this is fair. {box}",
    "My offer: {mine} for me. {box}",
    "Let us share like this. {box}",
    "I keep {mine}. Deal? {box}",
)
_COUNTER = (
    "That is too little for me. \\boxed{{REJECT}} {box}",
    "I need a bit more. \\boxed{{REJECT}} {box}",
    "Not quite. \\boxed{{REJECT}} {box}",
    "I can't take that. \\boxed{{REJECT}} {box}",
    "Let me change that. \\boxed{{REJECT}} {box}",
    "No. \\boxed{{REJECT}} I want {mine}. {box}",
    "\\boxed{{REJECT}} How about this split? {box}",
)
_HOLD = (
    "My offer stands. {box}",
    "I still think this is fair. {box}",
    "Please think again. {box}",
    "I need {mine}. {box}",
)
_ACCEPT = (
    "That works for me. \\boxed{{ACCEPT}}",
    "Good, I take it. \\boxed{{ACCEPT}}",
    "Fine, we have a deal. \\boxed{{ACCEPT}}",
    "All right, I agree to that. \\boxed{{ACCEPT}}",
    "I can live with that. \\boxed{{ACCEPT}}",
    "Okay, let us do it. \\boxed{{ACCEPT}}",
)
_REJECT = (
    "I need more than that. \\boxed{{REJECT}} Can you do better?",
    "That does not work for me. \\boxed{{REJECT}}",
    "Sorry, that is too little. \\boxed{{REJECT}} Make me another offer.",
)
_PREFER = (
    "I care most about the {top}s. What about you?",
    "The {top}s matter most to me, the {low}s least.",
    "I like the {top}s best. What do you want most?",
    "For me the {top}s are worth the most. Which items do you need?",
    "I could do without the {low}s. What do you like?",
    "What do you value most? For me it is the {top}s.",
)
_ASK = (
    "What would you like to have?",
    "Which items matter to you?",
    "Can you make me an offer?",
    "Tell me a bit more about what you want.",
)
_LEAVE = (
    "I do not see a deal here. \\boxed{{NO DEAL}}",
    "Then we stop without a deal. \\boxed{{NO DEAL}}",
)


class DondTeacher:
    """Agent 1. Shares are drawn at random, tilted only mildly to what is worth more to it."""

    def __init__(self, counts: Triple, values: Triple, n_messages: int, rng: random.Random) -> None:
        self._counts = counts
        self._values = values
        self._last = n_messages
        self._rng = rng

    def reply(self, turns: Sequence[Turn]) -> str:
        """The next message of the agent, from the transcript alone."""
        rng = self._rng
        offered, own = self._standing(turns), self._own(turns)
        draw = rng.random()
        if offered is not None and draw < self._willing(offered, len(turns)):
            return self._say(_ACCEPT)
        if len(turns) >= self._last - 1:
            return self._say(_LEAVE if rng.random() < 0.2 else _PREFER)
        draw = rng.random()
        if draw > 0.97:
            return self._say(_LEAVE)
        if len(turns) == 2:
            return self._talk() if draw < 0.35 else self._propose(rejecting=False)
        if draw < 0.20:
            return self._say(_REJECT) if offered is not None else self._talk()
        if draw < 0.42 and own is not None and offered is None:
            return self._say(_HOLD, own)
        return self._propose(rejecting=offered is not None)

    def _willing(self, share: Triple, n_turns: int) -> float:
        """How readily it takes a standing offer: more if it is worth more, and near the end."""
        if n_turns >= self._last - 1:
            return 0.45
        return min(0.95, 0.10 + 0.03 * self._worth(share) + 0.04 * (n_turns - 2) / 2)

    def _propose(self, *, rejecting: bool) -> str:
        # A rejection in the same message keeps a proposal from being read as an echo.
        return self._say(_COUNTER if rejecting else _PROPOSE, self._draw())

    def _draw(self) -> Triple:
        """A partition at random: the weight grows with its worth, extremes are rare."""
        books, hats, balls = (range(n + 1) for n in self._counts)
        shares = list(itertools.product(books, hats, balls))
        total = sum(self._counts)
        weights = [
            math.exp(0.10 * self._worth(s)) * (0.15 if sum(s) in (0, total) else 1.0)
            for s in shares
        ]
        return self._rng.choices(shares, weights)[0]

    def _talk(self) -> str:
        return self._say(_PREFER if self._rng.random() < 0.75 else _ASK)

    def _say(self, templates: Sequence[str], share: Triple = (0, 0, 0)) -> str:
        rest = _minus(self._counts, share)
        choices = [
            t
            for t in templates
            if ("{mine}" not in t or any(share)) and ("{theirs}" not in t or any(rest))
        ]
        order = sorted(range(3), key=lambda i: -self._values[i])
        return self._rng.choice(choices).format(
            mine=_words(share),
            theirs=_words(rest),
            box=f"\\boxed{{AGREED: MINE: {_terms(share)}; THEIRS: {_terms(rest)}}}",
            top=_ITEMS[order[0]],
            low=_ITEMS[order[-1]],
        )

    def _worth(self, share: Triple) -> int:
        return sum(n * v for n, v in zip(share, self._values, strict=True))

    def _standing(self, turns: Sequence[Turn]) -> Triple | None:
        """The agent's share under a proposal of the partner that still stands."""
        share: Triple | None = None
        for turn in turns:
            box = _last_box(turn.text)
            if box is not None:
                share = box[1] if turn.role is Role.PARTNER else None
            elif "{REJECT}" in turn.text:
                share = None
        return share

    def _own(self, turns: Sequence[Turn]) -> Triple | None:
        boxes = [_last_box(t.text) for t in turns if t.role is Role.AGENT]
        shares = [box[0] for box in boxes if box is not None]
        return shares[-1] if shares else None


def _last_box(text: str) -> tuple[Triple, Triple] | None:
    found = _BOX.findall(text)
    if not found:
        return None
    a, b, c, d, e, f = (int(n) for n in found[-1])
    return (a, b, c), (d, e, f)


def _minus(a: Triple, b: Triple) -> Triple:
    return (a[0] - b[0], a[1] - b[1], a[2] - b[2])


def _terms(share: Triple) -> str:
    return " ".join(f"{name}={n}" for name, n in zip(_ITEMS, share, strict=True))


def _words(share: Triple) -> str:
    parts = [f"{n} {i}{'s' if n > 1 else ''}" for i, n in zip(_ITEMS, share, strict=True) if n]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
