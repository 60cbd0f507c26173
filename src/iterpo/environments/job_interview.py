r"""Job Interview: a recruiter and a candidate settle five issues that each weighs differently.

Data sheet
    Roles: agent = recruiter, partner = worker.
    Private information: own weight per issue and own value per option; the ranges are public, and
        that the recruiter wants Salary and Holiday low, the worker high.
    Protocol: ``\boxed{AGREED: Salary=X Holiday=Y Workplace=Z Company=W Position=P}``; a deal closes
        when a side boxes what stands in the other's latest valid box, all five terms equal
        (rule A); ``\boxed{NO DEAL}`` ends it.
    Scenarios: drawn from a seed; no data set, no licence.
    Held out: other draws (split code 1).
    Reward: own weighted value at a deal, in [0, 1]; otherwise 0.
    End: deal, NO DEAL, or 10 messages after the opening.
    Compact prompts: points out of 100 per option in whole numbers (weight x value); Salary and
        Holiday show what the better end is worth, a Position its points in the four companies.
    Paper: appendix D.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from iterpo.domain import Ending, Outcome, Role, Scenario, Split, Turn, View
from iterpo.environments import bargain as bargaining
from iterpo.environments import boxed, issues
from iterpo.environments.base import PromptStyle
from iterpo.errors import ConfigError, DataError

if TYPE_CHECKING:
    from numpy.random import Generator

__all__ = ["JobInterview", "JobInterviewOptions", "Side"]

CODE = 5
TOP = 0.9
SALARIES = range(20, 52)
HOLIDAYS = range(2, 8)
WORKPLACES = ("Tokyo", "Seoul", "Beijing", "Sydney")
COMPANIES = ("Google", "Facebook", "Apple", "Amazon")
POSITIONS = ("Engineer", "Manager", "Designer", "Sales")

# Gaps: dS/31 + dH/5 + differing options, times 155, so that equal distances are equal integers.
AGENDA = issues.Agenda(
    (
        issues.Issue(
            "Salary", tuple(map(str, SALARIES)), "Salary", r"\$? ?", "(?: ?k)?", None, 5, True
        ),
        issues.Issue(
            "Holiday", tuple(map(str, HOLIDAYS)), "(?:Weekly ?)?Holiday", gap=31, ordered=True
        ),
        issues.Issue("Workplace", WORKPLACES, "Workplace", bare="", gap=155),
        issues.Issue("Company", COMPANIES, "Company", bare="", gap=155),
        issues.Issue("Position", POSITIONS, "Position", bare="", gap=155),
    ),
    gives=0,
)


@dataclass(frozen=True, slots=True)
class JobInterviewOptions:
    """Settings of the game."""

    closing: boxed.Closing = "bilateral"
    """``unilateral``: the first valid box closes at once (exploitable; for comparison)."""
    prompt_decimals: int = 2
    """Decimals of weights and values in the full prompt, 1 to 6; scores are never rounded."""
    prompt_style: PromptStyle = "full"
    """Rules in prose, or a few tokens for small models."""


class Side(NamedTuple):
    """What one side keeps to itself."""

    weights: tuple[float, ...]
    """Salary, Holiday, Workplace, Company, Position; they add up to 1."""
    workplace: tuple[float, ...]
    """Value of each place, in [0, 1]."""
    company: tuple[float, ...]
    """Value of each company, in [0, 1]."""
    position: tuple[tuple[float, ...], ...]
    """Value of each position, in [0, 1]; a row per company."""


class JobInterview:
    """The game as pure functions of (scenario, transcript)."""

    name = "job_interview"
    code = CODE
    options_type = JobInterviewOptions

    def __init__(self, options: JobInterviewOptions | None = None) -> None:
        self.options = options or JobInterviewOptions()
        if not 1 <= self.options.prompt_decimals <= 6:
            raise ConfigError(
                f"job_interview: option 'prompt_decimals' is {self.options.prompt_decimals}; "
                "give a number from 1 to 6"
            )

    def scenarios(self, split: Split, n: int, data_seed: int = 42) -> tuple[Scenario, ...]:
        """``n`` drawn kernels; kernel i is the same whatever ``n`` is."""
        import numpy as np  # importing an environment stays light

        out = []
        for i in range(n):
            g = np.random.default_rng([data_seed, CODE, split.code, i])
            facts = {"agent": _drawn(g), "partner": _drawn(g)}
            kernel = f"ji-{data_seed}-{split.code}-{i}"
            out.append(Scenario(kernel, self.name, split, facts))
        return tuple(out)

    def limit(self, scenario: Scenario) -> int:  # noqa: ARG002
        """Largest number of messages after the opening."""
        return issues.LIMIT

    def opening(self, scenario: Scenario) -> Turn:  # noqa: ARG002
        """The recruiter's scripted greeting: what there is to settle, without values."""
        if self.options.prompt_style == "compact":
            return Turn(Role.AGENT, "Job offer. You like?", scripted=True)
        text = (
            "Hello, I am the recruiter. Thank you for coming in to talk about the job offer. "
            "We have five things to settle: salary, weekly holiday, workplace, company and "
            "position. Which of them matter most to you?"
        )
        return Turn(Role.AGENT, text, scripted=True)

    def view(self, scenario: Scenario, role: Role, turns: Sequence[Turn]) -> View:
        """What one side sees: the issues and its own weights and values."""
        return View(role, _prompt(self.options, role, _side(scenario, role)), tuple(turns))

    def read(self, scenario: Scenario, turns: Sequence[Turn]) -> Outcome | None:
        """The outcome, or None while they still talk."""
        talk = self.talk(scenario, turns)
        if talk.ending is None:
            return None
        if talk.ending is not Ending.AGREED or talk.terms is None:
            return talk.without_deal()
        reward = issues.points(_sheet(_side(scenario, Role.AGENT), Role.AGENT), talk.terms)
        return Outcome(
            Ending.AGREED, reward, _named(talk.terms), talk.closed_by, closing_message=talk.message
        )

    def talk(self, scenario: Scenario, turns: Sequence[Turn]) -> boxed.Talk[issues.Terms]:  # noqa: ARG002
        """The fold behind ``read``: live boxed deals and how it ended."""
        return AGENDA.talk(turns, self.options.closing)

    def bargain(self, scenario: Scenario, partner_seed: int = 0) -> issues.IssueBargain:
        """What the scripted worker needs, for one scenario and one private draw."""
        draw = bargaining.private_draw(partner_seed, CODE, scenario.kernel_id)
        curve = bargaining.aspirations(0.35 + 0.20 * draw.u, TOP, draw.beta, issues.LIMIT // 2)
        worker, compact = _side(scenario, Role.PARTNER), self.options.prompt_style == "compact"
        return issues.IssueBargain(
            code=CODE,
            style=self.options.prompt_style,
            closing=self.options.closing,
            agenda=AGENDA,
            agent=_sheet(_side(scenario, Role.AGENT), Role.AGENT),
            partner=_sheet(worker, Role.PARTNER),
            # Lowered by the tolerance here, so that every comparison forgives a rounding error.
            aspirations=tuple(a - issues.TOLERANCE for a in curve),
            preference=_ranking(worker, compact),
        )


def _drawn(g: Generator) -> dict[str, Any]:
    u = g.random(5)
    weights = 0.1 + 0.5 * u / u.sum()
    workplace, company = _stretched(g), _stretched(g)
    position = [_stretched(g) for _ in COMPANIES]
    return {
        "weights": weights.tolist(),
        "workplace": workplace,
        "company": company,
        "position": position,
    }


def _stretched(g: Generator) -> list[float]:
    """Four values drawn and stretched to [0, 1]."""
    while True:
        values = g.random(4)
        least, most = values.min(), values.max()
        if most > least:
            stretched: list[float] = ((values - least) / (most - least)).tolist()
            return stretched


def _side(scenario: Scenario, role: Role) -> Side:
    try:
        f = scenario.facts[role.value]
        weights, workplace, company = f["weights"], f["workplace"], f["company"]
        position = tuple(tuple(row) for row in f["position"])
    except KeyError as error:
        raise DataError(
            f"scenario {scenario.kernel_id!r} has no fact {error}; job_interview needs agent and "
            "partner, each with weights, workplace, company and position"
        ) from None
    return Side(tuple(weights), tuple(workplace), tuple(company), position)


@lru_cache(maxsize=2048)
def _sheet(side: Side, role: Role) -> issues.Sheet:
    salary, holiday, workplace, company, position = side.weights
    if role is Role.AGENT:
        pay = tuple(salary * (SALARIES[-1] - s) / 31 for s in SALARIES)
        rest = tuple(holiday * (HOLIDAYS[-1] - h) / 5 for h in HOLIDAYS)
    else:
        pay = tuple(salary * (s - SALARIES[0]) / 31 for s in SALARIES)
        rest = tuple(holiday * (h - HOLIDAYS[0]) / 5 for h in HOLIDAYS)
    return (
        pay,
        rest,
        tuple(workplace * v for v in side.workplace),
        tuple(company * v for v in side.company),
        tuple(tuple(position * v for v in row) for row in side.position),
    )


def _named(terms: issues.Terms) -> dict[str, int | str]:
    salary, holiday, workplace, company, position = terms
    return {
        "Salary": SALARIES[salary],
        "Holiday": HOLIDAYS[holiday],
        "Workplace": WORKPLACES[workplace],
        "Company": COMPANIES[company],
        "Position": POSITIONS[position],
    }


@lru_cache(maxsize=2048)
def _ranking(side: Side, compact: bool) -> str:
    order = sorted(range(5), key=lambda i: (-side.weights[i], i))
    first, second = (AGENDA.issues[i].name for i in order[:2])
    company = side.company.index(max(side.company))
    row = side.position[company]
    liked = (
        WORKPLACES[side.workplace.index(max(side.workplace))],
        COMPANIES[company],
        POSITIONS[row.index(max(row))],
    )
    if compact:
        return f"{first}>{second} {' '.join(liked)}"
    return (
        f"The {first.lower()} matters most to me, and after that the {second.lower()}; I would "
        f"love to work in {liked[0]}, for {liked[1]}, and there the best job for me is "
        f"{liked[2]}"
    )


@lru_cache(maxsize=2048)
def _prompt(options: JobInterviewOptions, role: Role, side: Side) -> str:
    if options.prompt_style == "compact":
        return _points_out_of_100(side, role)
    digits = options.prompt_decimals

    def values(names: tuple[str, ...], numbers: tuple[float, ...]) -> str:
        return ", ".join(f"{n} {v:.{digits}f}" for n, v in zip(names, numbers, strict=True))

    w = [f"weight {weight:.{digits}f}" for weight in side.weights]
    low, high = ("1", "0") if role is Role.AGENT else ("0", "1")
    liking = "low" if role is Role.AGENT else "high"
    who = (
        "You are a recruiter and talk with a candidate about the terms of a job offer"
        if role is Role.AGENT
        else "You are looking for a job and talk with a recruiter about the terms of an offer"
    )
    jobs = "\n".join(
        f"  - at {company}: {values(POSITIONS, row)}"
        for company, row in zip(COMPANIES, side.position, strict=True)
    )
    closes = (
        "The first valid box by either side closes the deal."
        if options.closing == "unilateral"
        else "A deal counts only when both sides have boxed the same five terms; words close "
        "nothing."
    )
    return f"""\
{who}. Five issues are open. Your score is the sum over them of your weight times your value of \
what is agreed, at most 1. Only you know your numbers; the other side has its own, and they differ.
- Salary ({w[0]}): a whole number from 20 to 51, in thousands. You like it {liking}: your value \
goes evenly from {low} at 20 to {high} at 51.
- Holiday ({w[1]}): 2 to 7 free days a week. You like it {liking}: your value goes evenly from \
{low} at 2 to {high} at 7.
- Workplace ({w[2]}): {values(WORKPLACES, side.workplace)}.
- Company ({w[3]}): {values(COMPANIES, side.company)}.
- Position ({w[4]}); what it is worth to you depends on the company:
{jobs}
Get the highest score that you can. You want different things, so look for terms that are good \
for both.
- To propose or accept terms, write \\boxed{{AGREED: Salary=X Holiday=Y Workplace=Z Company=W \
Position=P}} with your choice for each letter. {closes}
- If you can't come to terms, write \\boxed{{NO DEAL}}; it ends the talk, and both score 0."""


def _points_out_of_100(side: Side, role: Role) -> str:
    liking = "low" if role is Role.AGENT else "high"
    salary, holiday = (round(100 * weight) for weight in side.weights[:2])
    parts = [f"Salary {liking} {salary}", f"Holiday {liking} {holiday}"]
    lists = (
        (WORKPLACES, side.weights[2], side.workplace),
        (COMPANIES, side.weights[3], side.company),
    )
    for names, weight, values in lists:
        rows = zip(names, values, strict=True)
        parts.append(" ".join(f"{name} {round(100 * weight * value)}" for name, value in rows))
    for name, column in zip(POSITIONS, zip(*side.position, strict=True), strict=True):
        values_at = (str(round(100 * side.weights[4] * value)) for value in column)
        parts.append(f"{name} {' '.join(values_at)}")
    return ", ".join(parts)
