"""What stands in a phrasing's fields: terms and tastes in words."""

from __future__ import annotations

import random
from collections.abc import Sequence

from iterpo.environments import alliance, casino, deal_or_no_deal, job_interview
from iterpo.environments.boxed import money_text
from nano_pretraining.position import Position, Terms

__all__ = ["in_words", "taste"]


def in_words(position: Position, terms: Terms, rng: random.Random) -> dict[str, str]:
    """Fields that name terms: ``x``; ``mine``; or ``one``, ``two``."""
    name = position.scenario.environment
    if name in ("ultimatum", "craigslist"):
        return {"x": f"${money_text(terms)}"}
    if name == "deal_or_no_deal":
        pairs = zip(deal_or_no_deal.ITEMS, terms, strict=True)
        return {"mine": " ".join(f"{n} {item}{'s' * (n != 1)}" for item, n in pairs)}
    if name == "casino":
        pairs = zip(casino.ITEMS, terms, strict=True)
        return {"mine": " ".join(f"{n} {item.lower()}" for item, n in pairs)}
    job = name == "job_interview"
    agenda = job_interview.AGENDA if job else alliance.AGENDA
    named = [
        issue.options[option] if job and i > 1 else f"{issue.name}={issue.options[option]}"
        for i, (issue, option) in enumerate(zip(agenda.issues, terms, strict=True))
    ]
    first, second = sorted(rng.sample(range(len(named)), 2))
    return {
        "one": named[rng.choice((first, second))],
        "two": f"{named[first]} and {named[second]}",
    }


def taste(position: Position) -> dict[str, str]:
    """Fields that name what the side likes, from its own points."""
    name, facts, role = position.scenario.environment, position.scenario.facts, position.role
    if name == "deal_or_no_deal":
        return _ends(deal_or_no_deal.ITEMS, facts[f"{role.value}_values"])
    if name == "casino":
        order = facts[f"{role.value}_order"]
        return {"top": order[0].lower(), "low": order[-1].lower()}
    if name == "alliance":
        return _ends(alliance.LETTERS, [max(row) for row in facts[f"{role.value}_scores"]])
    if name == "job_interview":
        own = facts[role.value]
        return {
            "place": _ends(job_interview.WORKPLACES, own["workplace"])["top"],
            "company": _ends(job_interview.COMPANIES, own["company"])["top"],
        }
    return {}


def _ends(names: Sequence[str], values: Sequence[float]) -> dict[str, str]:
    order = sorted(range(len(names)), key=lambda i: -values[i])
    return {"top": names[order[0]], "low": names[order[-1]]}
