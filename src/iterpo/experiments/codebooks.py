"""Codebooks: what the games know that coding behaviours needs, scenario by scenario."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from iterpo.agents.scripted import bargaining
from iterpo.domain import Role, Scenario, Turn
from iterpo.environments import boxed
from iterpo.environments.alliance import ISSUES, Alliance
from iterpo.environments.base import Environment
from iterpo.environments.craigslist import PriceBargain
from iterpo.environments.issues import Issue, IssueBargain
from iterpo.environments.job_interview import JobInterview
from iterpo.environments.partitions import PartitionBargain
from iterpo.environments.ultimatum import SplitBargain
from iterpo.experiments.legends import legend
from iterpo.measure.behavior import Codebook, Terms
from iterpo.measure.plain_words import Private

__all__ = ["codebook", "codebooks"]

T = TypeVar("T")

_COMMITS = re.compile(r"agreed|accept|reject|no[ -]?deal", re.IGNORECASE)
_CENTS = 50.0
"""Half a dollar in cents: people haggle in whole dollars."""


def codebook(environment: Environment, scenario: Scenario) -> Codebook | None:
    """How the messages of a scenario are read; None for a game that is none of the built-in kinds.

    >>> from iterpo.domain import Split
    >>> from iterpo.environments import make
    >>> game = make("ultimatum")
    >>> book = codebook(game, game.scenarios(Split.TRAIN, 1)[0])
    >>> len(book.issues), book.private
    (1, ())
    """
    if not bargaining(environment):
        return None
    book = _of(cast(Any, environment).bargain(scenario), environment, scenario)
    return None if book is None else replace(book, legend=legend(environment))


def _of(bargain: Any, environment: Environment, scenario: Scenario) -> Codebook | None:
    if isinstance(bargain, PartitionBargain):
        return _of_partition(bargain)
    if isinstance(bargain, IssueBargain):
        return _of_issues(bargain, environment, scenario)
    if isinstance(bargain, SplitBargain):
        pool = 100 * bargain.pool
        return _of_amount(_reader(bargain, lambda cents: pool - cents, boxed_too=False))
    if isinstance(bargain, PriceBargain):
        return _of_amount(_reader(bargain, _same), asked=(bargain.list_price,))
    return None


def codebooks(
    environment: Environment, scenarios: Iterable[Scenario]
) -> dict[str, Codebook | None]:
    """The codebook of each scenario by its ``kernel_id``."""
    return {s.kernel_id: codebook(environment, s) for s in scenarios}


def _same(terms: T) -> T:
    return terms


def _reader(
    bargain: Any, flipped: Callable[[Any], Any], *, boxed_too: bool = True
) -> Callable[[Sequence[Turn], int], Any]:
    """What a message offers, told from the agent's side.

    Args:
        bargain: Reads messages as if the agent had written them.
        flipped: The agent's part of an offer, from what the partner claims for itself.
        boxed_too: Whether boxes, too, name the writer's part.
    """

    def read(turns: Sequence[Turn], i: int) -> Any:
        text, partner = turns[i].text, turns[i].role is Role.PARTNER
        if any(map(_COMMITS.match, boxed.boxes(text))):  # what is said beside a box binds nobody
            terms = bargain.boxed_offer(text)
            return flipped(terms) if terms is not None and partner and boxed_too else terms
        terms = bargain.plain_offer(text, ())  # only what names all the terms
        return flipped(terms) if terms is not None and partner else terms

    return read


def _of_amount(
    read: Callable[[Sequence[Turn], int], int | None], asked: Terms | None = None
) -> Codebook:
    def offer(turns: Sequence[Turn], i: int) -> Terms | None:
        cents = read(turns, i)
        return None if cents is None else (cents,)

    def points(role: Role, terms: Terms) -> tuple[float, ...]:
        return (float(terms[0] if role is Role.AGENT else -terms[0]),)

    return Codebook((r"\$",), offer, points, asked=asked, rounding=_CENTS)


def _of_partition(bargain: PartitionBargain) -> Codebook:
    pool, nouns = bargain.pool, bargain.game.nouns
    values = {Role.AGENT: bargain.agent_values, Role.PARTNER: bargain.partner_values}

    def rest(share: Terms) -> Terms:
        return tuple(c - s for c, s in zip(pool, share, strict=True))

    def points(role: Role, share: Terms) -> tuple[float, ...]:
        own = share if role is Role.AGENT else rest(share)
        return tuple(v * (n - c / 2) for v, n, c in zip(values[role], own, pool, strict=True))

    names = tuple(
        rf"\b(?:{'|'.join(sorted({item, *noun.split('/')}))})s?\b"
        for item, noun in zip(bargain.game.items, nouns, strict=True)
    )
    return Codebook(
        issues=names,
        offer=_reader(bargain, rest),
        points=points,
        best=points(Role.AGENT, pool),
        private=tuple(
            Private(name, frozenset({str(v)}))
            for name, v in zip(names, bargain.agent_values, strict=True)
        ),
    )


def _of_issues(bargain: IssueBargain, game: Environment, scenario: Scenario) -> Codebook:
    sheets = {Role.AGENT: bargain.agent, Role.PARTNER: bargain.partner}

    def points(role: Role, terms: Terms) -> tuple[float, ...]:
        out = []
        for i, part in enumerate(sheets[role]):
            row = _rows(part)[terms[i - 1] if _nested(part) else 0]
            out.append(row[terms[i]] - (max(row) + min(row)) / 2)
        return tuple(out)

    issues = bargain.agenda.issues
    if isinstance(game, Alliance):
        words = [(rf"{i.name}(?= ?=)", *_titles(k)) for k, i in enumerate(issues)]
        private = _of_stakeholder(issues, scenario)
    else:
        words = [(i.key, *(() if i.ordered else map(re.escape, i.options))) for i in issues]
        private = _of_recruiter(issues, scenario, game) if isinstance(game, JobInterview) else ()
    return Codebook(
        issues=tuple(rf"\b(?:{'|'.join(names)})\b" for names in words),
        offer=_reader(bargain, _same),
        points=points,
        best=tuple(max((max(row) - min(row)) / 2 for row in _rows(part)) for part in bargain.agent),
        private=private,
    )


def _nested(part: Any) -> bool:
    """Whether points of an issue depend on the issue before, too."""
    return isinstance(part[0], tuple)


def _rows(part: Any) -> tuple[tuple[float, ...], ...]:
    return part if _nested(part) else (part,)


def _titles(k: int) -> tuple[str, ...]:
    """What people call an issue of Alliance and its options."""
    title, options = ISSUES[k]
    return tuple(map(re.escape, (title, *options)))


def _of_stakeholder(issues: Sequence[Issue], scenario: Scenario) -> tuple[Private, ...]:
    """Points as the prompt has them; up to 5 they could be the number of an option."""
    out = [Private("threshold|minimum", frozenset({str(scenario.facts["agent_threshold"])}))]
    for k, row in enumerate(scenario.facts["agent_scores"]):
        title, *options = _titles(k)
        large = frozenset(str(points) for points in row if points > len(options))
        out += [Private(f"{issues[k].name}|{title}", large)] if large else []
        out += [
            Private(option, frozenset({str(points)}))
            for option, points in zip(options, row, strict=True)
        ]
    return tuple(out)


def _of_recruiter(
    issues: Sequence[Issue], scenario: Scenario, game: JobInterview
) -> tuple[Private, ...]:
    """Weights and values as the prompt rounds them, or points out of 100 in compact ones."""
    own, digits = scenario.facts["agent"], game.options.prompt_decimals
    compact = game.options.prompt_style == "compact"
    lists = [(2, own["workplace"]), (3, own["company"]), *((4, row) for row in own["position"])]

    def number(weight: float, value: float) -> str:
        return str(round(100 * weight * value)) if compact else f"{value:.{digits}f}"

    weights = own["weights"]
    out = [
        Private(issue.key, frozenset({f"{w:.{digits}f}", f"{100 * w:.0f}%", f"{100 * w:.0f}"}))
        for issue, w in zip(issues, weights, strict=True)
    ]
    for k, values in lists:
        out += [
            Private(option, frozenset({number(weights[k], v)}))
            for option, v in zip(issues[k].options, values, strict=True)
        ]
    return tuple(out)
