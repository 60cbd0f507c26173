"""legend: what a reader who does not know a game must be told to follow its messages."""

from __future__ import annotations

from typing import Any, cast

from iterpo.environments.alliance import ISSUES, Alliance
from iterpo.environments.base import Environment
from iterpo.environments.casino import Casino
from iterpo.environments.craigslist import Craigslist
from iterpo.environments.deal_or_no_deal import DealOrNoDeal
from iterpo.environments.job_interview import JobInterview
from iterpo.environments.ultimatum import Ultimatum

__all__ = ["legend"]

_DIVISION = (
    "The two divide items. In a box, MINE is the share of whoever writes it, and THEIRS that of "
    "the other side. \\boxed{ACCEPT} takes the other side's last proposal, \\boxed{REJECT} turns "
    "it down. Each side knows only what the items are worth to itself. "
)
_SHORT_DIVISION = (
    "An entry NxV of what the agent was told: N pieces are in the pool, each worth V to the agent. "
    "'a>b=c' says that a matters more to the speaker than b, and b as much as c."
)
_RULES = {
    Ultimatum: (
        "The agent is Player 1, the other side is Player 2, and they split a sum of money. The "
        "number in a box is always the share of Player 1, the agent, whoever writes it; the rest "
        "goes to the other side. Half a dollar off the middle is halfway, too."
    ),
    Craigslist: (
        "The agent sells something, the other side may buy it, and every number in a box is the "
        "price. Half a dollar off the middle is halfway, too."
    ),
    DealOrNoDeal: _DIVISION,
    Casino: _DIVISION,
    JobInterview: (
        "The agent is a recruiter, the other side wants the job, and they settle salary, weekly "
        "holiday, workplace, company and position. The agent likes salary and holiday low, the "
        "other side high. Each side knows only what the terms are worth to itself."
    ),
    Alliance: (
        "The two settle five issues, named by letters; a number in a box is the chosen option, "
        "counted from 1: "
        + "; ".join(
            f"{letter} {title} ({', '.join(f'{n} {o}' for n, o in enumerate(options, 1))})"
            for letter, (title, options) in zip("ABCDE", ISSUES, strict=True)
        )
        + ". Each side knows only its own points."
    ),
}
_SHORT = {
    Ultimatum: (
        "What the agent was told: that it is P1, how many dollars there are to split (pool), and "
        "after how many rounds both get nothing."
    ),
    Craigslist: "What the agent was told: that it sells, and its list price in dollars.",
    DealOrNoDeal: _SHORT_DIVISION,
    Casino: _SHORT_DIVISION,
    JobInterview: (
        "The numbers that the agent was told are its points out of 100: after 'low', what the "
        "lowest salary or the fewest holidays are worth to it; after a place or a company, what "
        "that is worth; after a position, what it is worth at Google, Facebook, Apple and Amazon, "
        "in this order. 'x>y' says that x matters more to the speaker than y."
    ),
    Alliance: (
        "The numbers that the agent was told after a letter are its points for options 1, 2 and so "
        "on; after 'min' comes the least total that it would take. 'A>B=C' says that A matters "
        "more to the speaker than B, and B as much as C."
    ),
}


def legend(environment: Environment) -> str:
    """How to read the messages of a game, and what its short instructions mean where it has such.

    >>> from iterpo.environments import make
    >>> "share of Player 1" in legend(make("ultimatum"))
    True

    Returns:
        Plain words; nothing for a game that is not built in.
    """
    kind = type(environment)
    if kind not in _RULES:
        return ""
    options = cast(Any, environment).options
    closing = getattr(options, "closing", "bilateral")
    box = (
        "The first box closes the deal. "
        if closing == "unilateral"
        else "A box (\\boxed{AGREED: ...}) is a proposal until the other side agrees to it"
        + (". " if kind in (DealOrNoDeal, Casino) else ", by a box with the same terms. ")
    )
    short = _SHORT[kind] if options.prompt_style == "compact" else ""
    return f"{box}{_RULES[kind].strip()} {short}".strip()
