"""A proposer for the Ultimatum game that talks sensibly and bargains at random."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from iterpo.domain import Role, Turn

__all__ = ["UltimatumTeacher"]

_BOX = re.compile(r"\\boxed\{AGREED: split=\$(\d+)\}")

_OFFER = (
    "I keep {x}, you get {y}. {box}",
    "{x} for me. The rest, {y}, is for you. {box}",
    "Let me suggest that I take {x}. {box}",
    "I hold the pool, so I keep {x}. {box}",
    "You get {y}. That is better than nothing. {box}",
    "My proposal: {x} for me. {box}",
    "{y} for you is a good share. {box}",
    "I think this is fair for both of us. {box}",
    "Here is my offer. {box}",
    "I would like to keep {x}. {box}",
    "What do you say to {y} for you? {box}",
    "I take {x} and we are done. {box}",
)
_COME_DOWN = (
    "I can come down to {x} for me. {box}",
    "Let us meet closer. I keep {x}, you get {y}. {box}",
    "You bargain well. Then {x} for me. {box}",
    "I give a bit more: you get {y}. {box}",
    "All right, a better offer for you. {box}",
    "I can live with {x}. {box}",
    "To get this done, I lower my share to {x}. {box}",
)
_HOLD = (
    "My offer stands: {x} for me. {box}",
    "I still want {x}. {box}",
    "No, I stay with my offer. {box}",
    "I need {x}, please think again. {box}",
    "That is too little for me. I keep {x}. {box}",
    "Your share of {y} is fair. {box}",
)
_ACCEPT = (
    "That works for me. {box}",
    "Agreed, I take {x}. {box}",
    "Fine, I accept your split. {box}",
    "All right, {x} for me is fine. {box}",
    "I accept. {box}",
    "Good, then we have a deal at {x}. {box}",
    "Okay, let us do it your way. {box}",
)
_CHAT = (
    "What share would you be happy with?",
    "I want a larger share, since I hold the pool.",
    "We both get nothing without a deal. Can you move a bit?",
    "That is too little for me. Can you do better?",
    "I am ready to talk. What is the least you need?",
    "Please think about it again. I want a fair split.",
    "You ask for a lot. Make me a better offer.",
)
_PLAIN = (
    "I would like to keep {x}. Is that fine?",
    "I think {x} for me is right. What do you say?",
    "I want {x}. Can we agree on that?",
)
_LEAVE = (
    "I can't agree to that. \\boxed{{NO DEAL}}",
    "Then we end here without a deal. \\boxed{{NO DEAL}}",
    "That is not enough for me. \\boxed{{NO DEAL}}",
)


class UltimatumTeacher:
    """Player 1. Offers spread over 25% to 95% of the pool, whatever would be best."""

    def __init__(self, pool: int, n_messages: int, rng: random.Random) -> None:
        self._pool = pool
        self._last = n_messages
        self._rng = rng

    def reply(self, turns: Sequence[Turn]) -> str:
        """The next message of Player 1, from the transcript alone."""
        rng = self._rng
        mine, theirs = _latest(turns, Role.AGENT), _latest(turns, Role.PARTNER)
        final = len(turns) >= self._last - 1
        draw = rng.random()
        if final:
            return self._finish(draw, mine, theirs)
        if theirs is not None and draw < self._willing(mine, theirs):
            return self._say(_ACCEPT, theirs)
        if draw > 0.975:
            return self._say(_LEAVE, 0)
        if draw > 0.88:
            return self._say(_CHAT, 0)
        if mine is None or theirs is None or mine <= theirs:
            if draw > 0.82:
                return self._say(_PLAIN, self._fresh())
            return self._say(_OFFER, self._fresh())
        if draw > 0.72:
            return self._say(_HOLD, mine)
        if draw > 0.66:
            return self._say(_OFFER, self._fresh())
        return self._say(_COME_DOWN, self._between(theirs, mine))

    def _willing(self, mine: int | None, theirs: int) -> float:
        """How readily it takes the partner's offer before the last message."""
        if mine is None:
            return 0.33
        return 0.36 if mine > theirs else 0.60

    def _finish(self, draw: float, mine: int | None, theirs: int | None) -> str:
        """The last message: only taking the standing offer can still close a deal."""
        if theirs is not None and draw < 0.50:
            return self._say(_ACCEPT, theirs)
        if draw < 0.60:
            return self._say(_LEAVE, 0)
        if draw < 0.74:
            return self._say(_CHAT, 0)
        return self._say(_HOLD, mine) if mine is not None else self._say(_OFFER, self._fresh())

    def _fresh(self) -> int:
        low, high = (25, 50) if self._rng.random() < 0.4 else (50, 95)
        return self._amount(self._rng.uniform(low, high))

    def _between(self, low: int, high: int) -> int:
        share = low + (high - low) * self._rng.uniform(0.25, 1.0)
        return min(max(self._amount(100 * share / self._pool), low), high)

    def _amount(self, percent: float) -> int:
        """A round number: mostly in steps of 5% of the pool, at times of 1%."""
        step = 5 if self._rng.random() < 0.88 else 1
        return round(percent / step) * step * self._pool // 100

    def _say(self, templates: Sequence[str], x: int) -> str:
        box = f"\\boxed{{AGREED: split=${x}}}"
        text = self._rng.choice(templates)
        return text.format(x=f"${x}", y=f"${self._pool - x}", box=box)


def _latest(turns: Sequence[Turn], role: Role) -> int | None:
    amounts = [int(m) for t in turns if t.role is role for m in _BOX.findall(t.text)]
    return amounts[-1] if amounts else None
