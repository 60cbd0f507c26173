"""Shares claimed in plain words: "I keep two books, you get the hat", read with care or not at all.

Used by scripted partners only; what is said outside a box never closes a deal.
"""

from __future__ import annotations

import re
from functools import lru_cache

from iterpo.environments.remembered import remembered

__all__ = ["clauses", "denies", "said_share"]

_NUMBERS = {
    w: n
    for n, w in enumerate("zero one two three four five six seven eight nine ten".split())  # noqa: SIM905
} | {"no": 0, "a": 1, "an": 1}
_LOW = ("zero", "no", "a", "an")
_CAN = r"(?:'ll| will| would like to| would| can| could|'d like to|'d)?(?: just)?"
_CLAIM = re.compile(
    rf"\b(?P<own>I{_CAN} (?:take|keep|want|get)\b)"
    rf"|\b(?P<other>you{_CAN} (?:take|get|have(?! to)|keep)\b)",
    re.IGNORECASE | re.ASCII,
)
_END = re.compile(r"[.;!?\n]")
_NEAR = re.compile(r"[.,;!?\n]|\b(?:and|but)\b", re.IGNORECASE)
_DOUBTED = re.compile(r"n't\b|\b(?:not|never|cannot|unless|doubt|why|how come)\b", re.IGNORECASE)
"""In front of a claim: it is then none."""
_PERSON = re.compile(r"\b(?:I|you|we|he|she|they|me|us)\b", re.IGNORECASE)
_VAGUE = re.compile(
    r"[0-9]|n't\b|\b(?:half|some|most|many|few(?:er)?|more|less|least|than|or|either|neither|nor|not"
    r"|never|without|except|instead|all|both|everything|anything|nothing|rest|remainder|others?"
    r"|one|two|three|four|five|six|seven|eight|nine|ten)\b",
    re.IGNORECASE,
)
"""Beside the amounts of things: these are then unclear."""

_UNIT = "(?:packages?|packs?|packets?|units?|portions?|bundles?|bottles?|cases?) "
_NUMBER = rf"[0-9]{{1,3}}|{'|'.join(w for w in _NUMBERS if w != 'no')}"
_LEAD = re.compile(
    rf"(?:{_UNIT})?(?:(?:and|plus|also|just|only) )*(?:(?P<no>no|none) |(?P<all>all|the) )?"
    rf"(?:of )?(?:the )?(?:(?P<n>{_NUMBER}) )?(?:of )?(?:the )?(?:extra )?(?:{_UNIT})?"
    r"(?:of )?(?:the )?"
)
"""What may stand before a mass noun: how much of it, and nothing else."""
_WORD = re.compile(r"[a-z]+|[0-9]+|[^\s,&+a-z0-9]")
_REST = re.compile(r"\b(?:rest|everything else|remainder)\b", re.IGNORECASE)
_REST_IS = {
    own: re.compile(
        rf"[\s,]*(?:and )?(?:the rest|everything else)(?: is| goes to| for)? {whose}\W*",
        re.IGNORECASE,
    )
    for own, whose in ((True, "(?:yours|you)"), (False, "(?:mine|me)"))
}
_LOOSE = re.compile(
    r"[0-9]|\b(?:two|three|four|five|half|some|most|or|not|without)\b", re.IGNORECASE
)


@lru_cache(maxsize=64)
def _mention(items: tuple[str, ...]) -> re.Pattern[str]:
    names = "|".join(map(re.escape, items))
    number = rf"[0-9]{{1,3}}|{'|'.join(_NUMBERS)}"
    return re.compile(
        rf"(?:(?<![.,/–—-])\b(?P<n>{number}|both|all|the) (?:of )?(?:the )?"
        rf"(?:(?P<of>{number}) )?)?\b(?P<item>{names})(?P<many>s?)\b",
        re.IGNORECASE | re.ASCII,
    )


@lru_cache(maxsize=64)
def _mass(items: tuple[str, ...]) -> re.Pattern[str]:
    names = [name for item in items for name in item.split("/")]
    return re.compile(rf"\b(?P<item>{'|'.join(map(re.escape, names))})s?\b", re.I | re.ASCII)


@lru_cache(maxsize=64)
def _counted(items: tuple[str, ...]) -> re.Pattern[str]:
    """An amount of an item that no claim covers, and that leaves the claims unclear."""
    number = rf"\b(?:[0-9]{{1,3}}|all|{'|'.join(w for w in _NUMBERS if w not in _LOW)}) "
    return re.compile(
        rf"{number}(?:of )?(?:the )?(?:{_UNIT})?(?:of )?(?:the )?{_mass(items).pattern}",
        re.IGNORECASE | re.ASCII,
    )


_CLAUSE = re.compile(r"[;!?\n]|[.,](?=\s|$)|\b(?:and|but|while)\b", re.IGNORECASE)
_NOT = re.compile(r"n't\b|\b(?:(?<!why )not|never|cannot|reject|refuse)\b", re.IGNORECASE)
_BOUND = re.compile(
    r"\b(?:less|lower|below|under|more|higher|above|over|further|beyond|better)\b", re.IGNORECASE
)


def clauses(text: str) -> list[str]:
    """Parts of a text within which an amount belongs to its words.

    >>> clauses("I keep $1,250.50, and you get $40")
    ['I keep $1,250.50', ' ', ' you get $40']
    """
    return _CLAUSE.split(text)


def denies(clause: str) -> bool:
    """Whether an amount in a clause is one that the speaker turns down.

    >>> [denies(c) for c in ("I want $60", "I can't accept $40", "I won't go below $60")]
    [False, True, False]
    """
    clause = clause.replace("’", "'")
    return bool(_NOT.search(clause)) and not _BOUND.search(clause)


@remembered
def said_share(
    text: str, items: tuple[str, ...], pool: tuple[int, ...], mass: bool = False
) -> tuple[int, ...] | None:
    """The speaker's share as claimed in words; None if there is no claim or it is unclear.

    Items left unmentioned go to the other side after "I take …", to the speaker after
    "you get …"; where both are said, every item must be accounted for.

    Args:
        text: Message without its boxes.
        items: Names; a mass noun may have several ("firewood/wood").
        pool: How many there are of each.
        mass: Whether items are substances, "the water" and "two packages of water", not things,
            "two hats". An amount must then stand before each of them, and nothing else.

    >>> said_share("I keep both books. You?", ("book", "hat"), (2, 1))
    (2, 0)
    >>> said_share("You can have the hat", ("book", "hat"), (2, 1))
    (2, 0)
    >>> said_share("I want books", ("book", "hat"), (2, 1)) is None
    True
    >>> said_share("I'll take the food and 2 packs of water", ("food", "water"), (3, 3), mass=True)
    (3, 2)
    """
    text = text.replace("’", "'")
    claims = list(_CLAIM.finditer(text))
    if not claims:
        return None
    said: dict[bool, dict[int, int]] = {}
    outside, at = [], 0
    for claim, following in zip(claims, [*claims[1:], None], strict=True):
        until = following.start() if following else len(text)
        end = _END.search(text, claim.end(), until)
        stop = end.start() if end else until
        outside.append(text[at : claim.start()])
        if _DOUBTED.search(_NEAR.split(outside[-1])[-1]):
            return None
        at = stop
        part, own = text[claim.end() : stop], bool(claim["own"])
        counts = _amounts(part, items, pool, own) if mass else _counts(part, items, pool)
        if counts is None:
            return None
        side = said.setdefault(own, {})
        if side.keys() & counts.keys():
            return None
        side.update(counts)
    if not any(n for counts in said.values() for n in counts.values()):
        return None
    if mass and _counted(items).search(". ".join([*outside, text[at:]])):
        return None
    return _combined(said.get(True), said.get(False), pool)


def _counts(part: str, items: tuple[str, ...], pool: tuple[int, ...]) -> dict[int, int] | None:
    names = [item.lower() for item in items]
    out: dict[int, int] = {}
    before, at = "", 0
    for found in _mention(items).finditer(part):
        i = names.index(found["item"].lower())
        word, of = (found["n"] or "").lower(), found["of"]
        n = _count(word, bool(found["many"]), pool[i]) if word else None
        if n is None or n > pool[i] or i in out or (of and _number(of) != pool[i]):
            return None
        out[i] = n
        before, at = f"{before} {part[at : found.start()]}", found.end()
    if _PERSON.search(before) or _VAGUE.search(f"{before} {part[at:]}"):
        return None
    return out or None


def _count(word: str, many: bool, available: int) -> int | None:
    if word == "all" or (word == "the" and (many or available == 1)):
        return available
    if word == "both":
        return 2 if available == 2 else None
    return 1 if word == "the" else _number(word)


def _number(word: str) -> int:
    return int(word) if word.isdigit() else _NUMBERS[word.lower()]


def _amounts(
    part: str, items: tuple[str, ...], pool: tuple[int, ...], own: bool
) -> dict[int, int] | None:
    """Claimed amounts of mass nouns; empty for "the rest", which is what nobody mentions."""
    out: dict[int, int] = {}
    at = 0
    for found in _mass(items).finditer(part):
        name = found["item"].lower()
        i = next(i for i, item in enumerate(items) if name in item.split("/"))
        n = _amount(part[at : found.start()], pool[i])
        if n is None or n > pool[i] or i in out:
            return None
        out[i] = n
        at = found.end()
    tail = part[at:]
    if not out:
        return {} if re.fullmatch(r"\s*(?:all )?(?:the rest|everything else)\W*", tail) else None
    if _LOOSE.search(tail) or (_REST.search(tail) and not _REST_IS[own].fullmatch(tail)):
        return None
    return out


def _amount(lead: str, available: int) -> int | None:
    words = "".join(f"{word} " for word in _WORD.findall(lead.lower()))
    found = _LEAD.fullmatch(words)
    if not found or (found["no"] and found["n"]):
        return None
    if found["no"]:
        return 0
    if found["n"]:
        n = _number(found["n"])
        return None if found["all"] == "all" and n != available else n
    return available if found["all"] else None


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
