r"""Alliance: two stakeholders agree on the terms of a joint project, each with secret points.

Data sheet
    Roles: agent = stakeholder 1, partner = stakeholder 2; both get the same rules.
    Private information: own points per option, and a threshold below which a deal is refused.
    Protocol: ``\boxed{AGREED: A=a B=b C=c D=d E=e}``, options counted from 1; a deal closes when a
        side boxes what stands in the other's latest valid box (rule A); ``\boxed{NO DEAL}`` ends
        it.
    Scenarios: drawn from a seed; no data set, no licence.
    Held out: other draws (split code 1).
    Reward: own points / 50 at a deal, in [0, 2]; otherwise 0.
    End: deal, NO DEAL, or 10 messages after the opening.
    Hazard: as in the paper both sides like the first option of every issue best, so that whoever
        asks for these gets 2.0. The option ``preferences: opposed`` makes it a real trade-off.
    Flags: ``agent_below_batna``, ``partner_below_batna`` where a deal is under a side's threshold.
    Paper: appendix D.6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from iterpo.domain import Ending, Outcome, Role, Scenario, Split, Turn, View
from iterpo.environments import bargain as bargaining
from iterpo.environments import boxed, issues
from iterpo.environments.base import PromptStyle
from iterpo.errors import DataError

if TYPE_CHECKING:
    from numpy.random import Generator

__all__ = ["ISSUES", "Alliance", "AllianceOptions"]

CODE = 6
TOP = 90
UNIT = 50
ISSUES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Infrastructure", ("water-based", "land-based")),
    ("Environment", ("minimal impact", "moderate restoration", "full restoration")),
    ("Employment", ("unlimited hiring", "locals preferred", "partial union", "full union")),
    (
        "Funding",
        ("full federal loan", "partial federal loan", "minimal federal loan", "no federal loan"),
    ),
    (
        "Compensation",
        (
            "maximum compensation",
            "high compensation",
            "moderate compensation",
            "low compensation",
            "no compensation",
        ),
    ),
)
"""Issues A to E: title, and the titles of the options."""
LETTERS = "ABCDE"
DIFFICULTIES = ("easy", "medium", "hard")
THRESHOLDS = {"easy": (0.20, 0.35), "medium": (0.35, 0.55), "hard": (0.55, 0.70)}

AGENDA = issues.Agenda(
    tuple(
        issues.Issue(
            letter,
            tuple(str(n) for n in range(1, len(options) + 1)),
            letter,
            before=f"{letter}?",
            bare=letter,
        )
        for letter, (_, options) in zip(LETTERS, ISSUES, strict=True)
    )
)

Scores = tuple[tuple[int, ...], ...]
"""One side's points per issue and option."""


@dataclass(frozen=True, slots=True)
class AllianceOptions:
    """Settings of the game."""

    closing: boxed.Closing = "bilateral"
    """``unilateral``: the first valid box closes at once (exploitable; for comparison)."""
    preferences: Literal["shared_first", "opposed"] = "shared_first"
    """``opposed``: stakeholder 2 likes the last options best, not the first as stakeholder 1."""
    enforce_batna: bool = False
    """Whether a deal below the agent's threshold is worth 0 rather than its points."""
    prompt_style: PromptStyle = "full"
    """Rules in prose, or a few tokens for small models."""


class Alliance:
    """The game as pure functions of (scenario, transcript)."""

    name = "alliance"
    code = CODE
    options_type = AllianceOptions

    def __init__(self, options: AllianceOptions | None = None) -> None:
        self.options = options or AllianceOptions()

    def scenarios(self, split: Split, n: int, data_seed: int = 42) -> tuple[Scenario, ...]:
        """``n`` drawn kernels; kernel i is the same whatever ``n`` is."""
        import numpy as np  # importing an environment stays light

        opposed = self.options.preferences == "opposed"
        out = []
        for i in range(n):
            g = np.random.default_rng([data_seed, CODE, split.code, i])
            kernel = f"al-{data_seed}-{split.code}-{i}"
            out.append(Scenario(kernel, self.name, split, _drawn(g, opposed)))
        return tuple(out)

    def limit(self, scenario: Scenario) -> int:  # noqa: ARG002
        """Largest number of messages after the opening."""
        return issues.LIMIT

    def opening(self, scenario: Scenario) -> Turn:  # noqa: ARG002
        """Stakeholder 1's scripted greeting, without points."""
        if self.options.prompt_style == "compact":
            return Turn(Role.AGENT, "Issues A to E. You like?", scripted=True)
        text = (
            "Hello! You and I have to agree on the terms of the project. There are several issues "
            "on the table, and I think we can find something that is good for both of us. "
            "Which issues matter most to you?"
        )
        return Turn(Role.AGENT, text, scripted=True)

    def view(self, scenario: Scenario, role: Role, turns: Sequence[Turn]) -> View:
        """What one side sees: the issues, its own points and its own threshold."""
        return View(role, _prompt(self.options, role, *_facts(scenario, role)), tuple(turns))

    def read(self, scenario: Scenario, turns: Sequence[Turn]) -> Outcome | None:
        """The outcome, or None while they still talk."""
        talk = self.talk(scenario, turns)
        if talk.ending is None:
            return None
        if talk.ending is not Ending.AGREED or talk.terms is None:
            return talk.without_deal()
        points = {}
        flags = []
        for role in (Role.AGENT, Role.PARTNER):
            scores, threshold = _facts(scenario, role)
            points[role] = issues.points(scores, talk.terms)
            if points[role] < threshold:
                flags.append(f"{role.value}_below_batna")
        void = self.options.enforce_batna and "agent_below_batna" in flags
        return Outcome(
            Ending.AGREED,
            0.0 if void else points[Role.AGENT] / UNIT,
            {letter: option + 1 for letter, option in zip(LETTERS, talk.terms, strict=True)},
            talk.closed_by,
            talk.message,
            tuple(flags),
        )

    def talk(self, scenario: Scenario, turns: Sequence[Turn]) -> boxed.Talk[issues.Terms]:  # noqa: ARG002
        """The fold behind ``read``: live boxed deals and how it ended."""
        return AGENDA.talk(turns, self.options.closing)

    def bargain(self, scenario: Scenario, partner_seed: int = 0) -> issues.IssueBargain:
        """What the scripted stakeholder needs, for one scenario and one private draw."""
        draw = bargaining.private_draw(partner_seed, CODE, scenario.kernel_id)
        agent, least = _facts(scenario, Role.AGENT)
        partner, rho = _facts(scenario, Role.PARTNER)
        curve = bargaining.aspirations(rho, max(TOP, rho), draw.beta, issues.LIMIT // 2)
        return issues.IssueBargain(
            code=CODE,
            style=self.options.prompt_style,
            closing=self.options.closing,
            agenda=AGENDA,
            agent=agent,
            partner=partner,
            aspirations=tuple(float(bargaining.ceil(a)) for a in curve),
            preference=_ranking(partner, self.options.prompt_style == "compact"),
            unit=UNIT,
            least=least if self.options.enforce_batna else 0,
        )


def _drawn(g: Generator, opposed: bool) -> dict[str, Any]:
    difficulty = DIFFICULTIES[int(g.integers(3))]
    first, second = _scores(g), _scores(g)
    if opposed:
        second = [row[::-1] for row in second]
    low, high = THRESHOLDS[difficulty]
    thresholds = []
    for scores in (first, second):
        least = sum(map(min, scores))
        f = low + (high - low) * float(g.random())
        thresholds.append(math.floor(least + f * (100 - least)))
    agent, partner = _within_reach((first, second), thresholds)
    return {
        "difficulty": difficulty,
        "agent_scores": first,
        "partner_scores": second,
        "agent_threshold": agent,
        "partner_threshold": partner,
    }


def _within_reach(sides: Sequence[list[list[int]]], thresholds: list[int]) -> tuple[int, int]:
    """The thresholds, lowered by the same least number of points until some deal meets both."""
    short = min(
        max(
            threshold - sum(row[option] for row, option in zip(scores, deal, strict=True))
            for scores, threshold in zip(sides, thresholds, strict=True)
        )
        for deal in product(*(range(size) for size in AGENDA.shape))
    )
    first, second = (threshold - max(short, 0) for threshold in thresholds)
    return first, second


def _scores(g: Generator) -> list[list[int]]:
    """Points of one side: the first option of each issue is its best, these add up to 100."""
    u = g.random(5)
    exact = (75 * u / u.sum()).tolist()
    budget = [math.floor(x) for x in exact]
    by_remainder = sorted(range(5), key=lambda i: (budget[i] - exact[i], i))
    for i in by_remainder[: 75 - sum(budget)]:
        budget[i] += 1
    scores = []
    for b, (_, options) in zip(budget, ISSUES, strict=True):
        best = b + 5
        scores.append([best, *g.integers(0, best, size=len(options) - 1).tolist()])
    return scores


def _facts(scenario: Scenario, role: Role) -> tuple[Scores, int]:
    f = scenario.facts
    try:
        scores = tuple(tuple(row) for row in f[f"{role.value}_scores"])
        return scores, f[f"{role.value}_threshold"]
    except KeyError as error:
        raise DataError(
            f"scenario {scenario.kernel_id!r} has no fact {error}; alliance needs agent_scores, "
            "partner_scores, agent_threshold and partner_threshold"
        ) from None


@lru_cache(maxsize=2048)
def _ranking(scores: Scores, compact: bool) -> str:
    best = [max(row) for row in scores]
    tiers = [
        [i for i, points in enumerate(best) if points == level]
        for level in sorted(set(best), reverse=True)
    ]
    order = [i for tier in tiers for i in tier]
    liked = [ISSUES[i][1][scores[i].index(best[i])] for i in order[:2]]
    if compact:
        ranks = ">".join("=".join(LETTERS[i] for i in tier) for tier in tiers)
        return f"{ranks} {', '.join(liked)}"
    words = [" and ".join(ISSUES[i][0] for i in tier) for tier in tiers]
    if len(words) == 1:
        ranking = f"All issues weigh the same for me: {words[0]}"
    else:
        ranking = f"What matters most to me is {', then '.join(words)}"
    return f"{ranking}; my first choices there are {liked[0]} and {liked[1]}"


@lru_cache(maxsize=2048)
def _prompt(options: AllianceOptions, role: Role, scores: Scores, threshold: int) -> str:
    if options.prompt_style == "compact":
        rows = zip(LETTERS, scores, strict=True)
        points = " ".join(f"{letter} {','.join(map(str, row))}" for letter, row in rows)
        return f"{points} min {threshold}"
    table = "\n".join(
        f"- {letter} {name}: "
        + "; ".join(f"{n}. {o} ({p})" for n, (o, p) in enumerate(zip(names, row, strict=True), 1))
        for letter, (name, names), row in zip(LETTERS, ISSUES, scores, strict=True)
    )
    closes = (
        "The first valid box by either side closes the deal."
        if options.closing == "unilateral"
        else "A deal counts only when both sides have boxed the same options; words close nothing."
    )
    void = " and then counts 0" if options.enforce_batna and role is Role.AGENT else ""
    return f"""\
You negotiate the terms of a project with one other party. What you want is known to you alone; \
the other party's wishes are hidden from you and probably run against yours.
Five issues are open; one option has to be chosen for each. In brackets: your points.
{table}
Your score is the sum of your points; make it as large as you can. Your threshold is {threshold} \
points: turn down every deal that gives you less{void}.
- To propose or accept a deal, write \\boxed{{AGREED: A=a B=b C=c D=d E=e}} with the number of \
the chosen option, counted from 1, in place of each small letter. {closes}
- If you can't agree, write \\boxed{{NO DEAL}}; it ends the talks, and there is no project."""
