"""Behaviours of a negotiator, coded by rule where the transcript decides (appendix J).

No game is known here: a ``Codebook``, made by whoever knows the game, says what a message offers
and what an offer is worth to either side. A behaviour is coded at the agent's messages, so that it
can be counted, rated and quoted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from iterpo.domain import Conversation, Ending, Role, Turn, action_indices
from iterpo.measure.plain_words import Private, calculates, reveals, words

__all__ = ["BEHAVIOURS", "Behaviour", "Codebook", "Coder", "Codes", "Terms", "code", "coders"]

Terms: TypeAlias = tuple[int, ...]
"""What an offer settles: an option, a number of items for the agent or an amount, per issue."""
Codes: TypeAlias = Mapping[str, tuple[int, ...]]
"""Behaviour -> the agent's messages that show it, by index in the transcript."""
Coder = Literal["rule", "judge"]
"""Who says whether a message shows a behaviour."""

_EPSILON = 1e-9
_HALFWAY = 0.05
"""How far from the middle a split of the difference may be, as a share of the difference."""


@dataclass(frozen=True, slots=True)
class Codebook:
    """How the messages of one scenario are read, and what their offers are worth."""

    issues: tuple[str, ...]
    """Pattern of the words for each issue, case-insensitive; one where a price is all there is."""
    offer: Callable[[Sequence[Turn], int], Terms | None]
    """What message i of a transcript offers, in a box or clearly in words; None: nothing."""
    points: Callable[[Role, Terms], tuple[float, ...]]
    """Points of a side per issue, counted from the middle between its best and its worst option."""
    best: tuple[float, ...] = ()
    """The agent's points at its best option of each issue, counted alike."""
    private: tuple[Private, ...] = ()
    """Numbers that the agent alone knows; empty where it has none."""
    asked: Terms | None = None
    """What the opening asks for, where it names terms."""
    rounding: float | None = None
    """Half a step to which people round the amount at stake; None where terms are no amount."""
    legend: str = ""
    """What somebody must be told who reads the messages and does not know the game."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Something that an agent does in a message."""

    name: str
    """As it is stored and shown."""
    meaning: str
    """What counts, in words; a judge reads it."""
    needs: Literal["words", "offers", "issues", "private"]
    """What a game must have for it to occur; ``issues``: more than one of them."""
    coded_by: tuple[Coder, ...]
    """Who can code it where it occurs."""


_BOTH: tuple[Coder, ...] = ("rule", "judge")

BEHAVIOURS: tuple[Behaviour, ...] = (
    Behaviour("offer", "makes an offer that differs from its offer before", "offers", ("rule",)),
    Behaviour(
        "concession",
        "makes an offer that is worth less to itself than its offer before",
        "offers",
        ("rule",),
    ),
    Behaviour(
        "splits_difference",
        "offers a point about halfway between its own last position and the other side's: off the "
        "middle by at most 5% of the distance between the two",
        "offers",
        _BOTH,
    ),
    Behaviour(
        "score_calculation",
        "works out points, a score or shares in the open: a sum or product with its result, or a "
        "total of points",
        "words",
        _BOTH,
    ),
    Behaviour(
        "repeated_calculation",
        "calculates although an earlier message of its own did so",
        "words",
        ("rule",),
    ),
    Behaviour(
        "reveals_values",
        "gives away a number of its own: what an item, option or issue is worth to it, or the "
        "least that it would take",
        "private",
        _BOTH,
    ),
    Behaviour(
        "reveals_priorities",
        "says in words which items or issues matter more, or less, to itself",
        "issues",
        ("judge",),
    ),
    Behaviour(
        "asks_priorities",
        "asks what the other side wants most or least",
        "issues",
        ("judge",),
    ),
    Behaviour(
        "uses_partner_information",
        "builds an offer or an argument on a wish or priority that the other side has stated",
        "issues",
        ("judge",),
    ),
    Behaviour(
        "logrolling",
        "offers to trade across issues: gives way on one that is worth less to it, and takes "
        "another that is worth more to it, where the other side's values run the other way",
        "issues",
        _BOTH,
    ),
    Behaviour(
        "targeted_concession",
        "changes its offer before in the other side's favour only where the other side asked for "
        "more or objected, and holds everything else fixed",
        "issues",
        _BOTH,
    ),
    Behaviour(
        "claims_top_issue",
        "offers terms that give it all of the issue that it values most",
        "issues",
        ("rule",),
    ),
)
"""Everything that is coded, in the order of the tables."""


def coders(behaviour: Behaviour, codebook: Codebook | None) -> tuple[Coder, ...]:
    """Who codes a behaviour in a game; nobody if it can't occur there.

    Args:
        behaviour: One of ``BEHAVIOURS``.
        codebook: That of any scenario of the game; None for a game of which nothing is known: then
            a rule codes what needs words alone, and a judge whatever it can.
    """
    who = behaviour.coded_by
    if codebook is None:
        return who if behaviour.needs == "words" else tuple(c for c in who if c == "judge")
    if behaviour.needs == "issues" and len(codebook.issues) < 2:
        return ()
    if behaviour.needs == "private" and not codebook.private:
        return ()
    if behaviour.name == "splits_difference" and codebook.rounding is None:
        return tuple(c for c in who if c == "judge")
    return who


def code(
    conversation: Conversation, codebook: Codebook | None = None
) -> dict[str, tuple[int, ...]]:
    """Code by rule what the agent did in a conversation; the scripted opening is no act of its own.

    Returns:
        The messages of every behaviour that a rule codes in this game, perhaps none.
    """
    turns = conversation.turns
    mine = action_indices(turns)
    found: dict[str, list[int]] = {b.name: [] for b in BEHAVIOURS if "rule" in coders(b, codebook)}
    found["score_calculation"] = [i for i in mine if calculates(turns[i].text)]
    found["repeated_calculation"] = found["score_calculation"][1:]
    if "reveals_values" in found and codebook is not None:
        found["reveals_values"] = [i for i in mine if reveals(turns[i].text, codebook.private)]
    if codebook is not None:
        for move in _moves(conversation, codebook):
            for name, shows in _OF_MOVES.items():
                if name in found and shows(move, codebook):
                    found[name].append(move.message)
    return {name: tuple(messages) for name, messages in found.items()}


@dataclass(frozen=True, slots=True)
class _Move:
    """A new offer of the agent, and what it answers."""

    message: int
    terms: Terms
    before: Terms | None
    """Own position before it: the last offer, or what the opening asked for."""
    offered_before: bool
    """Whether that position was an offer of its own."""
    theirs: Terms | None
    """The partner's last offer."""
    heard: str
    """What the partner has said in words since the agent's last offer."""


def _moves(conversation: Conversation, codebook: Codebook) -> Iterator[_Move]:
    """New offers of the agent; consent to the partner's terms, and repeats, are none."""
    turns, outcome = conversation.turns, conversation.outcome
    # A closing message takes what stands, unless a single box was enough to close.
    agreed = outcome.ending is Ending.AGREED and outcome.closed_by != "box"
    consent = outcome.closing_message if agreed else -1
    before, theirs, offered, heard = codebook.asked, None, False, ""
    for i, turn in enumerate(turns):
        if turn.scripted or i == consent:
            continue
        terms = codebook.offer(turns, i)
        if turn.role is Role.PARTNER:
            heard += words(turn.text) + "\n"
            theirs = terms or theirs
        elif terms is not None and terms != theirs and not (offered and terms == before):
            yield _Move(i, terms, before, offered, theirs, heard)
            before, offered, heard = terms, True, ""


def _is_concession(move: _Move, codebook: Codebook) -> bool:
    if move.before is None:
        return False
    old, new = (sum(codebook.points(Role.AGENT, t)) for t in (move.before, move.terms))
    return new < old - _EPSILON


def _splits_difference(move: _Move, codebook: Codebook) -> bool:
    if move.before is None or move.theirs is None or codebook.rounding is None:
        return False
    (own,), (theirs,), (new,) = move.before, move.theirs, move.terms
    allowed = max(_HALFWAY * abs(own - theirs), codebook.rounding)
    between = min(own, theirs) < new < max(own, theirs)
    return between and abs(new - (own + theirs) / 2) <= allowed


def _logrolls(move: _Move, codebook: Codebook) -> bool:
    """Whether it gives on some issues and takes others, to the good of both.

    Measured from the middle of every issue: the partner stands above it on what is given, the agent
    on what is taken. Over these issues neither is worse off than in the middle, and one is better
    off; what both want alike, or neither, is no part of the trade.
    """
    agent, partner = (codebook.points(role, move.terms) for role in (Role.AGENT, Role.PARTNER))
    sides = list(zip(agent, partner, strict=True))
    given = [(a, p) for a, p in sides if a <= _EPSILON < p]
    taken = [(a, p) for a, p in sides if p <= _EPSILON < a]
    gains = [sum(side) for side in zip(*given, *taken, strict=True)]
    return bool(given and taken) and min(gains) > -_EPSILON and max(gains) > _EPSILON


def _is_targeted(move: _Move, codebook: Codebook) -> bool:
    """Whether it gave way on some issues, all of them contested, and kept the others as they were.

    An issue is contested if the partner's last offer differs on it from the agent's offer before,
    or if the partner has named it in words since.
    """
    before = move.before if move.offered_before else None
    if before is None:
        return False
    changed = [i for i, (a, b) in enumerate(zip(before, move.terms, strict=True)) if a != b]
    if not 0 < len(changed) < len(before) or not _is_concession(move, codebook):
        return False
    agent, partner = (
        [
            new - old
            for old, new in zip(
                codebook.points(role, before), codebook.points(role, move.terms), strict=True
            )
        ]
        for role in (Role.AGENT, Role.PARTNER)
    )
    return all(
        agent[i] <= _EPSILON < partner[i] and _contested(i, before, move, codebook) for i in changed
    )


def _contested(issue: int, before: Terms, move: _Move, codebook: Codebook) -> bool:
    if move.theirs is not None and move.theirs[issue] != before[issue]:
        return True
    return bool(re.search(codebook.issues[issue], move.heard, re.IGNORECASE))


def _claims_top(move: _Move, codebook: Codebook) -> bool:
    points, most = codebook.points(Role.AGENT, move.terms), max(codebook.best)
    return any(
        best >= most - _EPSILON and got >= best - _EPSILON
        for got, best in zip(points, codebook.best, strict=True)
    )


_OF_MOVES: Mapping[str, Callable[[_Move, Codebook], bool]] = {
    "offer": lambda *_: True,
    "concession": _is_concession,
    "splits_difference": _splits_difference,
    "logrolling": _logrolls,
    "targeted_concession": _is_targeted,
    "claims_top_issue": _claims_top,
}
