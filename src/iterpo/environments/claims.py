"""Shares claimed in plain words: "I keep two books, you get the hat", read with care or not at all.

Used by scripted partners only; what is said outside a box never closes a deal.
"""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["said_share"]

_NUMBERS = {
    w: n
    for n, w in enumerate("zero one two three four five six seven eight nine ten".split())  # noqa: SIM905
} | {"no": 0, "a": 1, "an": 1}
_CAN = r"(?:'ll| will| would like to| would| can| could|'d like to|'d)?(?: just)?"
_CLAIM = re.compile(
    rf"\b(?P<own>I{_CAN} (?:take|keep|want|get)\b)|\b(?P<other>you{_CAN} (?:take|get|have|keep)\b)",
    re.IGNORECASE | re.ASCII,
)
_END = re.compile(r"[.;!?\n]")


@lru_cache(maxsize=64)
def _mention(items: tuple[str, ...]) -> re.Pattern[str]:
    names = "|".join(map(re.escape, items))
    amount = rf"[0-9]{{1,3}}|{'|'.join(_NUMBERS)}|both|all|the"
    return re.compile(
        rf"(?:\b(?P<n>{amount}) (?:of )?(?:the )?)?\b(?P<item>{names})(?P<many>s?)\b",
        re.IGNORECASE | re.ASCII,
    )


@lru_cache(maxsize=16384)
def said_share(text: str, items: tuple[str, ...], pool: tuple[int, ...]) -> tuple[int, ...] | None:
    """The speaker's share as claimed in words; None if there is no claim or it is unclear.

    Items left unmentioned go to the other side after "I take …", to the speaker after
    "you get …"; where both are said, every item must be accounted for.

    >>> said_share("I keep both books. You?", ("book", "hat"), (2, 1))
    (2, 0)
    >>> said_share("You can have the hat", ("book", "hat"), (2, 1))
    (2, 0)
    >>> said_share("I want books", ("book", "hat"), (2, 1)) is None
    True
    """
    text = text.replace("’", "'")
    claims = list(_CLAIM.finditer(text))
    if not claims:
        return None
    said: dict[bool, dict[int, int]] = {}
    for claim, following in zip(claims, [*claims[1:], None], strict=True):
        until = following.start() if following else len(text)
        end = _END.search(text, claim.end(), until)
        part = text[claim.end() : end.start() if end else until]
        counts = _counts(part, items, pool)
        if counts is None:
            return None
        side = said.setdefault(bool(claim["own"]), {})
        if side.keys() & counts.keys():
            return None
        side.update(counts)
    return _combined(said.get(True), said.get(False), pool)


def _counts(part: str, items: tuple[str, ...], pool: tuple[int, ...]) -> dict[int, int] | None:
    names = [item.lower() for item in items]
    out: dict[int, int] = {}
    for found in _mention(items).finditer(part):
        i = names.index(found["item"].lower())
        word = (found["n"] or "").lower()
        if not word or i in out:
            return None
        if word == "all" or (word == "the" and (found["many"] or pool[i] == 1)):
            n = pool[i]
        elif word in ("the", "both"):
            n = 1 if word == "the" else 2
        else:
            n = int(word) if word.isdigit() else _NUMBERS[word]
        if n > pool[i]:
            return None
        out[i] = n
    return out or None


def _combined(
    own: dict[int, int] | None, other: dict[int, int] | None, pool: tuple[int, ...]
) -> tuple[int, ...] | None:
    share = []
    for i, count in enumerate(pool):
        mine = own.get(i) if own else None
        theirs = other.get(i) if other else None
        if mine is not None and theirs is not None and mine + theirs != count:
            return None
        if mine is None and theirs is None and own and other:
            return None
        if mine is None:
            mine = count - theirs if theirs is not None else (0 if own else count)
        share.append(mine)
    return tuple(share)
