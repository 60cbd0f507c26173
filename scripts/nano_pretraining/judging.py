"""Whether a message is sound: its boxes valid, its words in agreement with them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from iterpo.domain import Role, Scenario, Turn
from iterpo.environments import alliance, casino, deal_or_no_deal, job_interview
from iterpo.environments.boxed import boxes
from nano_pretraining import phrasings
from nano_pretraining.kernels import game
from nano_pretraining.position import Position, Terms, position

__all__ = ["Box", "agent_boxes", "consent_is_copied", "words_fit"]


@dataclass(frozen=True, slots=True)
class Box:
    """One box of an agent's message."""

    valid: bool
    """Whether the game can read it."""
    names_terms: bool = False
    """Whether it is meant to hold terms."""
    share: float | None = None
    """Own value of its terms, of what can be had at most."""


def agent_boxes(text: str, scenario: Scenario) -> list[Box]:
    """Every box of an agent's message; a marker that is never closed is an invalid one."""
    seat = _seat(scenario)
    out = []
    for body in boxes(text):
        if body in ("NO DEAL", "ACCEPT", "REJECT"):
            out.append(Box(body == "NO DEAL" or bool(seat.table.rejection)))
            continue
        terms = _boxed(seat, f"\\boxed{{{body}}}")
        share = None if terms is None else seat.value(terms)
        out.append(Box(terms is not None, names_terms=True, share=share))
    return out + [Box(valid=False, names_terms=True)] * (text.count("\\boxed") - len(out))


def words_fit(text: str, scenario: Scenario) -> bool | None:
    """Whether what is said in words is what the message boxes; None if nothing is said or boxed."""
    words, marker, _ = text.partition("\\boxed{")
    terms = _boxed(_seat(scenario), text)
    if not marker or terms is None:
        return None
    said = _said(words, scenario.environment)
    return said <= _told(terms, scenario) if said else None


def consent_is_copied(text: str, turns: Sequence[Turn], scenario: Scenario) -> bool | None:
    """Whether a message that consents in words boxes the partner's standing offer; else None.

    Also None in games that accept by a keyword.
    """
    words, marker, rest = text.partition("\\boxed{")
    seat = _seat(scenario)
    if not marker or not rest.startswith("AGREED") or seat.table.rejection:
        return None
    if not _consent(scenario.environment).fullmatch(words.strip()):
        return None
    standing = seat.table.standing(turns, Role.PARTNER)
    return standing is not None and _boxed(seat, text) == standing


def _seat(scenario: Scenario) -> Position:
    return position(game(scenario.environment), scenario, Role.AGENT)


def _boxed(seat: Position, text: str) -> Terms | None:
    return cast(Any, seat.table).boxed_offer(text)


_DOLLARS = re.compile(r"\$(\d+(?:\.\d\d)?)")
_COUNT = re.compile(r"(\d+) (book|hat|ball|food|water|firewood)")
_NAMED = re.compile(r"\b(Salary|Holiday|[A-E])=(\w+)")
_BARE = re.compile(
    "|".join((*job_interview.WORKPLACES, *job_interview.COMPANIES, *job_interview.POSITIONS))
)


def _said(words: str, environment: str) -> set[tuple[str, str]]:
    """(what, how much) of everything that words name."""
    if environment in ("ultimatum", "craigslist"):
        return {("$", f"{float(n):.2f}") for n in _DOLLARS.findall(words)}
    if environment in ("deal_or_no_deal", "casino"):
        return {(item, n) for n, item in _COUNT.findall(words)}
    bare = _BARE.findall(words) if environment == "job_interview" else []
    return {*_NAMED.findall(words), *((name, "") for name in bare)}


def _told(terms: Terms, scenario: Scenario) -> set[tuple[str, str]]:
    """(what, how much) that a message may name beside boxed terms."""
    name = scenario.environment
    if name == "craigslist":
        return {("$", f"{terms / 100:.2f}")}
    if name == "ultimatum":
        rest = scenario.facts["pool"] - terms / 100
        return {("$", f"{terms / 100:.2f}"), ("$", f"{rest:.2f}")}
    if name in ("deal_or_no_deal", "casino"):
        items = deal_or_no_deal.ITEMS if name == "deal_or_no_deal" else casino.ITEMS
        return {(item.lower(), str(n)) for item, n in zip(items, terms, strict=True)}
    agenda = job_interview.AGENDA if name == "job_interview" else alliance.AGENDA
    told = {
        (issue.name, issue.options[option])
        for issue, option in zip(agenda.issues, terms, strict=True)
    }
    return told | {(option, "") for _, option in told}


_FIELD = re.compile(r"\\\{\w+\\\}")


@lru_cache(maxsize=16)
def _consent(environment: str) -> re.Pattern[str]:
    """Words that consent, and are no other act's."""
    says = phrasings.of_game(environment)
    others = {*says.offer, *says.step, *says.hold}
    own = [t.partition("{box}")[0].strip() for t in says.accept if t not in others]
    return re.compile("|".join(_FIELD.sub(r"\\S+(?: and \\S+)?", re.escape(text)) for text in own))
