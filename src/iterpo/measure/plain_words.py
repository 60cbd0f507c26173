"""What a message gives away in plain words: a calculation, or a private number.

Both are read with care: what could be a count, a range or an offer is neither.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Private", "calculates", "reveals", "words"]

_BOX = re.compile(r"\\boxed\s*\{(?:[^{}]|\{[^{}]*\})*\}")
_LATEX = (
    (re.compile(r"\\(?:times|cdot)\b"), "*"),
    (re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\[()\[\]]|\*\*|\\(?=\$)"), " "),
)

_NUMBER = r"\$?[0-9][0-9,]{0,12}(?:\.[0-9]{1,9})?%?"
_TERM = rf"(?:[a-z]{{1,20}}:? ){{0,2}}\(?{_NUMBER}(?: [a-z]{{1,20}}){{0,3}}\)?"
_OPERATOR = r" ?(?:[-+*/x×·−]|times|plus|minus) ?"
_EQUALS = r" ?(?:=|≈|equals|is|makes|gives) ?"
_ARITHMETIC = re.compile(
    rf"(?<![\w.]){_NUMBER}(?: [a-z]{{1,20}}){{0,3}}\)?(?:{_OPERATOR}{_TERM}){{1,8}}"
    rf"{_EQUALS}\(?{_NUMBER}",
    re.IGNORECASE,
)
_TOTAL = re.compile(
    rf"\b(?:score|utility)\b(?: [a-z]{{1,12}}){{0,4}} ?(?:of|is|be|=|:|to|at) ?{_NUMBER}"
    rf"|\b(?:total|sum|adds? up|comes? to)\b[^0-9.;!?]{{0,24}}{_NUMBER} ?(?:points?|pts)\b"
    rf"|\b(?:gives?|gets?|leaves?|makes?) (?:me|you|us both|each of us) {_NUMBER} ?points\b",
    re.IGNORECASE,
)

_SENTENCE = re.compile(r"[;!?\n]|\.(?=\s|$)")
_SELF = re.compile(r"\b(?:I|I'm|I'd|me|my|mine)\b", re.IGNORECASE)
_WORTH = re.compile(
    r"\b(?:worth|valu\w*|points?|pts|weigh\w*|scores?|utility|threshold|minimum)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Private:
    """Numbers of the agent about one thing."""

    names: str
    """Pattern of the words for the thing, case-insensitive."""
    numbers: frozenset[str]
    """Its numbers as they may be written, e.g. 0.26 and 26%."""


def words(text: str) -> str:
    r"""A message without its boxes.

    >>> words(r"Fine. \boxed{\text{ACCEPT}} Thanks!")
    'Fine.   Thanks!'
    """
    return _BOX.sub(" ", text)


def calculates(text: str) -> bool:
    r"""Whether a message works out numbers in the open.

    A sum or product must come with its result, or a total of points must be told.

    >>> [calculates(t) for t in ("3*2 + 1*2 = 8", "I take 3 books + 1 hat", "from 20 - 51")]
    [True, False, False]
    """
    said = words(text)
    for pattern, plain in _LATEX:
        said = pattern.sub(plain, said)
    said = " ".join(said.split())
    return bool(_ARITHMETIC.search(said) or _TOTAL.search(said))


def reveals(text: str, private: Sequence[Private]) -> bool:
    """Whether a message tells a private number of the speaker, with the thing that it belongs to.

    The sentence must be about the speaker and about worth; a number in front of a thing is a count.

    >>> hat = Private("hats?", frozenset({"4"}))
    >>> [reveals(t, [hat]) for t in ("The hat is worth 4 to me", "I value hats: 4 hats for me")]
    [True, False]
    """
    said = words(text).replace("’", "'")
    told = [s for s in _SENTENCE.split(said) if _SELF.search(s) and _WORTH.search(s)]
    return any(_told(private, k).search(s) for s in told for k in range(len(private)))


def _told(private: Sequence[Private], k: int) -> re.Pattern[str]:
    return _pattern(tuple(p.names for p in private), k, tuple(sorted(private[k].numbers)))


@lru_cache(maxsize=4096)
def _pattern(names: tuple[str, ...], k: int, numbers: tuple[str, ...]) -> re.Pattern[str]:
    anything = "|".join(f"(?:{n})" for n in names)
    number = rf"(?<![0-9.,$])(?:{'|'.join(map(re.escape, numbers))})(?![0-9%]|[.,][0-9])"
    thing = rf"\b(?:{names[k]})\b"
    # No other thing and no number may stand between a thing and its number.
    gap = rf"(?:(?!\b(?:{anything})\b)[^0-9]){{0,40}}?"
    linked = r"(?:\b(?:worth|valued?|at|weight|weighs?|is|are|of|to|gives?|brings?)\b|[=(])"
    count = rf"(?! ?(?:x ?)?(?:of the |the )?(?:{anything})\b)"
    return re.compile(
        rf"{thing}{gap}{linked}{gap}{number}{count}"
        rf"|{number} ?(?:points?|pts)\b(?:(?!\b(?:{anything})\b)[^0-9]){{0,20}}?{thing}",
        re.IGNORECASE,
    )
