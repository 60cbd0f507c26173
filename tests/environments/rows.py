"""Rows of the games' edge tables: how a conversation must be read, message by message."""

from __future__ import annotations

from typing import Any

from iterpo.domain import Ending, Outcome, Role, Scenario, Turn

OPEN, LIMIT, REFUSED = "open", "limit", "no deal"
_WITHOUT_A_DEAL = {LIMIT: Ending.TURN_LIMIT, REFUSED: Ending.REFUSED}


def read_row(
    game: Any, kernel: Scenario, turns: tuple[Turn, ...], expected: object
) -> Outcome | None:
    """How the conversation ends, which is at its last message and not before.

    Args:
        expected: OPEN, LIMIT or REFUSED; anything else stands for a deal, whose terms are the
            caller's to look at.

    Returns:
        None for an open conversation; without a deal by the end there is no reward.
    """
    for n in range(1, len(turns)):
        assert game.read(kernel, turns[:n]) is None
    outcome: Outcome | None = game.read(kernel, turns)
    if expected == OPEN:
        assert outcome is None
        while len(turns) <= game.limit(kernel):
            role = Role.PARTNER if len(turns) % 2 else Role.AGENT
            turns = (*turns, Turn(role, "I will think about it."))
        end = game.read(kernel, turns)
        assert end is not None
        assert (end.ending, end.reward) == (Ending.TURN_LIMIT, 0.0)
        return None
    assert outcome is not None
    assert outcome.closing_message == len(turns) - 1
    ending = _WITHOUT_A_DEAL.get(str(expected), Ending.AGREED)
    assert outcome.ending is ending
    if ending is not Ending.AGREED:
        assert (outcome.reward, dict(outcome.terms), outcome.flags) == (0.0, {}, ())
    return outcome


def division(items: tuple[str, ...], mine: str, theirs: str) -> str:
    """A box that shares out items; counts as ``3,0,1``."""
    sides = [
        " ".join(f"{i}={n}" for i, n in zip(items, side.split(","), strict=True))
        for side in (mine, theirs)
    ]
    return f"[AGREED: MINE: {sides[0]}; THEIRS: {sides[1]}]"
