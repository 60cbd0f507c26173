"""Behaviours in the six games, coded by hand; each with a near miss that must not be coded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from iterpo.domain import Conversation, Ending, Outcome, Role, Scenario, Split, Turn
from iterpo.environments import make
from iterpo.experiments.codebooks import codebook, codebooks
from iterpo.measure.behavior import BEHAVIOURS, code, coders
from iterpo.measure.judging import question

DIVISION = {"counts": [3, 1, 2], "agent_values": [2, 0, 2], "partner_values": [0, 6, 2]}
"""The pool of appendix J.3.1: 3 books, 1 hat, 2 balls."""
CAMPERS = {
    "agent_order": ["Food", "Water", "Firewood"],
    "agent_reasons": ["a", "b", "c"],
    "partner_order": ["Water", "Food", "Firewood"],
    "partner_reasons": ["a", "b", "c"],
}
_LISTS = {
    "workplace": [0.0, 1.0, 0.5, 0.5],
    "company": [0.0, 1.0, 0.5, 0.5],
    "position": [[0.0, 1.0, 0.5, 0.5]] * 4,
}
HIRING = {
    "agent": {"weights": [0.1, 0.32, 0.18, 0.2, 0.2], **_LISTS},
    "partner": {"weights": [0.32, 0.1, 0.18, 0.2, 0.2], **_LISTS},
}
"""The recruiter cares for holidays, the worker for the salary; Beijing and so on are the middle."""
PROJECT = {
    "agent_scores": [[40, 0], [10, 5, 0], [20, 0, 0, 0], [15, 0, 0, 0], [15, 0, 0, 0, 0]],
    "partner_scores": [[0, 10], [0, 20, 40], [20, 0, 0, 0], [15, 0, 0, 0], [15, 0, 0, 0, 0]],
    "agent_threshold": 52,
    "partner_threshold": 30,
}
MONEY = {"pool": 100, "rounds": 8}
BIKE = {"title": "Bike", "list_price": 100, "target": 70}

NEUTRAL = "Workplace=Beijing Company=Apple Position=Designer"


def box(terms: str) -> str:
    return f"\\boxed{{AGREED: {terms}}}"


def share(*mine: int, pool: tuple[int, ...] = (3, 1, 2)) -> str:
    items = ("book", "hat", "ball") if pool == (3, 1, 2) else ("Food", "Water", "Firewood")
    theirs = [c - m for c, m in zip(pool, mine, strict=True)]
    sides = [" ".join(f"{i}={n}" for i, n in zip(items, s, strict=True)) for s in (mine, theirs)]
    return box(f"MINE: {sides[0]}; THEIRS: {sides[1]}")


def packs(*mine: int) -> str:
    return share(*mine, pool=(3, 3, 3))


def played(
    game: str, facts: Mapping[str, Any], *said: str, **options: Any
) -> tuple[Any, Scenario, Conversation]:
    env: Any = make(game, **options)
    scenario = Scenario("k", game, Split.TRAIN, facts)
    turns = [env.opening(scenario)]
    for i, text in enumerate(said, start=1):
        assert env.read(scenario, turns) is None, f"it ended before message {i}"
        turns.append(Turn(Role.PARTNER if i % 2 else Role.AGENT, text))
    outcome = env.read(scenario, turns) or Outcome(Ending.TURN_LIMIT, 0.0)
    system = env.view(scenario, Role.AGENT, turns).system
    return env, scenario, Conversation("c", "k", game, tuple(turns), outcome, system)


def coded(game: str, facts: Mapping[str, Any], *said: str) -> dict[str, tuple[int, ...]]:
    """What is shown, without what is not."""
    env, scenario, conversation = played(game, facts, *said)
    return {k: v for k, v in code(conversation, codebook(env, scenario)).items() if v}


U, C, D, F, J, A = (
    ("ultimatum", MONEY),
    ("craigslist", BIKE),
    ("deal_or_no_deal", DIVISION),
    ("casino", CAMPERS),
    ("job_interview", HIRING),
    ("alliance", PROJECT),
)

CASES: dict[str, tuple[tuple[str, Mapping[str, Any]], list[str], dict[str, tuple[int, ...]]]] = {
    "ultimatum: half way between 70 and 40, then between 55 and 45": (
        U,
        [
            box("split=$30"),
            box("split=$70"),
            box("split=$40"),
            box("split=$55"),
            box("split=$45"),
            "Then I keep $50.",
        ],
        {"offer": (2, 4, 6), "concession": (4, 6), "splits_difference": (4, 6)},
    ),
    "ultimatum: 60 is a concession, but not half way between 70 and 40": (
        U,
        [box("split=$30"), box("split=$70"), box("split=$40"), box("split=$60")],
        {"offer": (2, 4), "concession": (4,)},
    ),
    "ultimatum: what the partner wants leaves the agent 60, and 65 is half way to that": (
        U,
        ["I want $40.", box("split=$70"), "I want $40.", box("split=$65")],
        {"offer": (2, 4), "concession": (4,), "splits_difference": (4,)},
    ),
    "ultimatum: asking for more is no concession": (
        U,
        [box("split=$30"), box("split=$70"), "No.", box("split=$80")],
        {"offer": (2, 4)},
    ),
    "ultimatum: boxing what the partner said in words is consent, though it closes nothing": (
        U,
        ["I want $40.", box("split=$60")],
        {},
    ),
    "ultimatum: boxing what the partner boxed is consent, repeating oneself no new offer": (
        U,
        [box("split=$30"), box("split=$70"), "No.", box("split=$70"), "No.", box("split=$30")],
        {"offer": (2,)},
    ),
    "ultimatum: a sum in the open, twice": (
        U,
        ["Hm.", "$100 - $40 = $60 for me.", "Hm.", r"\(100 - 55\) = 45, so you get $45."],
        # "you get $45" is an offer of 55; the first message claims 60
        {
            "offer": (2, 4),
            "concession": (4,),
            "score_calculation": (2, 4),
            "repeated_calculation": (4,),
        },
    ),
    "craigslist: half way between the list price and the bid": (
        C,
        ["Would you take less? " + box("$60"), box("$80")],
        {"offer": (2,), "concession": (2,), "splits_difference": (2,)},
    ),
    "craigslist: no bid yet, so nothing to split": (
        C,
        ["Is it new?", "Yes. " + box("$80")],
        {"offer": (2,), "concession": (2,)},
    ),
    "craigslist: the list price again is an offer and no concession": (
        C,
        [box("$60"), "It is as good as new. " + box("$100")],
        {"offer": (2,)},
    ),
    "deal or no deal, appendix J.3.1, round 4: books for the hat": (
        D,
        ["The hat matters most to me, and one ball.", share(3, 0, 1), "\\boxed{ACCEPT}"],
        {"offer": (2,), "logrolling": (2,), "claims_top_issue": (2,)},
    ),
    "deal or no deal, appendix J.3.1, round 0: the same sum over and over": (
        D,
        [
            share(0, 1, 2),
            r"My points: 3 \times 2 + 2 \times 2 = 10.",
            "Yours?",
            "Once more: 3 * 2 + 0 * 0 + 2 * 2 = 10 for me.",
        ],
        {"score_calculation": (2, 4), "repeated_calculation": (4,)},
    ),
    "deal or no deal: a trade the wrong way round": (D, ["Hi.", share(0, 1, 1)], {"offer": (2,)}),
    "deal or no deal: all for oneself is no trade": (
        D,
        ["Hi.", share(3, 1, 2)],
        {"offer": (2,), "claims_top_issue": (2,)},
    ),
    "deal or no deal: one ball less, as the partner asked, all else fixed": (
        D,
        ["Hi.", share(3, 1, 2), "I need a ball.", share(3, 1, 1)],
        # worth 10, then 8; the hat is worth nothing to the agent and stays with it
        {
            "offer": (2, 4),
            "concession": (4,),
            "targeted_concession": (4,),
            "claims_top_issue": (2, 4),
        },
    ),
    "deal or no deal: the same ball, but nobody asked for one": (
        D,
        ["Hi.", share(3, 1, 2), "I need the hat.", share(3, 1, 1)],
        {"offer": (2, 4), "concession": (4,), "claims_top_issue": (2, 4)},
    ),
    "deal or no deal: the partner boxes for all books, so the ball is not contested": (
        D,
        ["Hi.", share(3, 1, 2), share(3, 0, 0), "\\boxed{REJECT} " + share(3, 1, 1)],
        {"offer": (2, 4), "concession": (4,), "claims_top_issue": (2, 4)},
    ),
    "deal or no deal: the partner boxes for a ball": (
        D,
        ["Hi.", share(3, 1, 2), share(0, 0, 1), "\\boxed{REJECT} " + share(2, 1, 2)],
        # its box leaves the agent all but one ball: giving a book does not answer that
        {"offer": (2, 4), "concession": (4,), "claims_top_issue": (2,)},
    ),
    "deal or no deal: a verbatim echo closes and is no offer": (
        D,
        [share(0, 1, 1), share(0, 1, 1)],
        {},
    ),
    "deal or no deal: words beside ACCEPT are no offer": (
        D,
        [share(0, 1, 1), "I take the books. \\boxed{ACCEPT}"],
        {},
    ),
    "deal or no deal: own values in numbers": (
        D,
        ["Hi.", "A book is worth 2 to me.", "And?", "My values: ball=2, hat=0."],
        {"reveals_values": (2, 4)},
    ),
    "deal or no deal: counts, and the partner's values, reveal nothing": (
        D,
        ["Hi.", "I value 2 books and 2 balls.", "And?", "What is a book worth, 2? You value it 2."],
        {},
    ),
    "casino: food for water, each side's first": (
        F,
        ["Hi.", packs(3, 0, 1)],
        # agent 7.5 - 6 - 1.5 = 0, partner -6 + 7.5 + 1.5 = 3 above the middle
        {"offer": (2,), "logrolling": (2,), "claims_top_issue": (2,)},
    ),
    "casino: the same food, bought with all the wood, costs the agent more than it brings": (
        F,
        ["Hi.", packs(3, 0, 0)],
        # agent 7.5 - 6 - 4.5 = -3
        {"offer": (2,), "claims_top_issue": (2,)},
    ),
    "casino: points told": (
        F,
        ["Hi.", "Food is my priority, worth 5 points to me.", "So?", "Food is worth 4 to me."],
        {"reveals_values": (2,)},
    ),
    "job interview, appendix J.3.2: the contested salary alone gives way": (
        J,
        [
            "I would like a lot.",
            f"My offer: Salary=30, Weekly Holiday=4, {NEUTRAL.replace(' ', ', ')}.",
            "The salary is low.",
            f"New offer: Salary=45, Weekly Holiday=4, {NEUTRAL.replace(' ', ', ')}.",
            "Better.",
            box(f"Salary=45 Holiday=4 {NEUTRAL}"),
            box(f"Salary=45 Holiday=4 {NEUTRAL}"),
        ],
        # from the start the salary is below, the holiday above the recruiter's middle: agent
        # +.018 +.032 at 30, -.031 +.032 at 45; partner -.057 -.01 and +.098 -.01
        {
            "offer": (2, 4),
            "concession": (4,),
            "targeted_concession": (4,),
            "logrolling": (4,),
        },
    ),
    "job interview: an uncontested issue gives way, too": (
        J,
        [
            "Hi.",
            box(f"Salary=30 Holiday=3 {NEUTRAL}"),
            "The salary is low.",
            box(f"Salary=45 Holiday=4 {NEUTRAL}"),
        ],
        {"offer": (2, 4), "concession": (4,), "logrolling": (4,)},
    ),
    "job interview: a wish in words that leaves issues open is no offer": (
        J,
        [
            box(f"Salary=45 Holiday=4 {NEUTRAL}"),
            box(f"Salary=30 Holiday=3 {NEUTRAL}"),
            "I like Seoul and Google.",
            "Then Salary=40.",
        ],
        {"offer": (2,)},
    ),
    "job interview: salary for holidays": (
        J,
        ["Hi.", box(f"Salary=51 Holiday=2 {NEUTRAL}")],
        {"offer": (2,), "logrolling": (2,), "claims_top_issue": (2,)},
    ),
    "job interview: holidays for salary, the wrong way round": (
        J,
        ["Hi.", box(f"Salary=20 Holiday=7 {NEUTRAL}")],
        {"offer": (2,)},
    ),
    "job interview: a weight told, and a salary that is none": (
        J,
        ["Hi.", "My weight for the salary is 0.10.", "So?", "For me a salary of 32 has its value."],
        {"reveals_values": (2,)},
    ),
    "alliance: infrastructure for the environment": (
        A,
        ["Hi.", box("A=1 B=3 C=1 D=1 E=1")],
        {"offer": (2,), "logrolling": (2,), "claims_top_issue": (2,)},
    ),
    "alliance: the wrong way round, sweetened by what both want": (
        A,
        ["Hi.", box("A=2 B=1 C=1 D=1 E=1")],
        {"offer": (2,)},
    ),
    "alliance: own threshold and points told": (
        A,
        ["Hi.", "My threshold is 52 points.", "So?", "Water-based is worth 40 points to me."],
        {"reveals_values": (2, 4)},
    ),
    "alliance: the number of an option is no private number": (
        A,
        ["Hi.", "Option 5 of E is of no value to me.", "So?", "I value B=2 more."],
        {},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_behaviours_are_coded_as_by_hand(name: str) -> None:
    (game, facts), said, expected = CASES[name]
    assert coded(game, facts, *said) == expected


_ALL = tuple(b.name for b in BEHAVIOURS)
_PRICES = ("offer", "concession", "splits_difference", "score_calculation", "repeated_calculation")


@pytest.mark.parametrize("game", [U, C, D, F, J, A], ids=lambda g: g[0])
def test_what_can_occur_in_a_game(game: tuple[str, Mapping[str, Any]]) -> None:
    env, scenario, conversation = played(*game, "Hi.", "Hello.")
    book = codebook(env, scenario)
    by = {b.name: coders(b, book) for b in BEHAVIOURS}
    one_issue = game[0] in ("ultimatum", "craigslist")
    assert tuple(name for name in _ALL if by[name]) == (_PRICES if one_issue else _ALL)
    # Half way is a number where the terms are one, and a judge's matter elsewhere.
    assert ("rule" in by["splits_difference"]) is one_issue
    assert set(code(conversation, book)) == {name for name in _ALL if "rule" in by[name]}
    assert set(question(conversation, book).behaviours) == {n for n in _ALL if "judge" in by[n]}


@pytest.mark.parametrize(
    ("game", "style", "told"),
    [
        (U, "full", "the share of Player 1, the agent"),
        (U, "compact", "how many dollars there are to split (pool)"),
        (C, "compact", "its list price"),
        (D, "compact", "NxV of what the agent was told: N pieces are in the pool, each worth V"),
        (F, "compact", "MINE is the share of whoever writes it"),
        (J, "compact", "after a position, what it is worth at Google, Facebook, Apple and Amazon"),
        (A, "compact", "after 'min' comes the least total"),
        (A, "full", "B Environment (1 minimal impact, 2 moderate restoration, 3 full restoration)"),
    ],
    ids=lambda x: x[0] if isinstance(x, tuple) else None,
)
def test_the_judge_is_told_how_to_read_a_game(
    game: tuple[str, Mapping[str, Any]], style: str, told: str
) -> None:
    env, scenario, conversation = played(*game, "Hi.", "Hello.", prompt_style=style)
    prompt = question(conversation, codebook(env, scenario)).prompt
    assert told in prompt
    assert "is a proposal until the other side agrees" in prompt
    assert ("\\boxed{ACCEPT}" in prompt) is not ("by a box with the same terms" in prompt)
    assert ("the agent was told" in prompt.split("\nEND\n")[1]) is (style == "compact")


def test_where_one_box_closes_the_judge_is_told_so() -> None:
    env, scenario, conversation = played(*U, "Hi.", "Hello.", closing="unilateral")
    prompt = question(conversation, codebook(env, scenario)).prompt
    assert "The first box closes the deal." in prompt
    assert "is a proposal until" not in prompt


def test_the_table_of_the_how_to_is_true() -> None:
    page = Path(__file__).parents[2] / "docs/how-to/code-behaviours.md"
    rows = [r.strip("| ").split(" | ") for r in page.read_text().split("\n") if r.startswith("| ")]
    games = {g: codebook(*played(g, facts)[:2]) for g, facts in (U, C, D, F, J, A)}
    assert rows[0] == ["behaviour", *games]
    assert rows[1:] == [
        [f"`{b.name}`", *(", ".join(coders(b, book)) or "-" for book in games.values())]
        for b in BEHAVIOURS
    ]


def test_a_game_that_nobody_knows_is_coded_by_words_and_judge() -> None:
    class Strange:
        name = "strange"

    assert codebooks(Strange(), [Scenario("k", "strange", Split.TRAIN, {})]) == {"k": None}  # type: ignore[arg-type]
    _, _, conversation = played(*D, "Hi.", "2 * 3 = 6. " + share(3, 0, 1))
    assert code(conversation) == {"score_calculation": (2,), "repeated_calculation": ()}
    assert "logrolling" in question(conversation).behaviours


def test_compact_prompts_have_other_private_numbers() -> None:
    """Points out of 100 there: 0.2 x 1 is 20."""
    said = "Facebook gives me 20 points."
    for style, told in (("compact", (2,)), ("full", ())):
        env, scenario, conversation = played(*J, "Hi.", said, prompt_style=style)
        assert code(conversation, codebook(env, scenario))["reveals_values"] == told


@pytest.mark.parametrize("game", [U, C, D, F, J, A], ids=lambda g: g[0])
def test_names_of_kernels_and_rounds_change_nothing(game: tuple[str, Mapping[str, Any]]) -> None:
    """Neither what is coded nor what a judge reads."""
    said = [s for (g, _), told, _ in CASES.values() if g == game[0] for s in told[:2]][:2]
    env, scenario, conversation = played(*game, *said)
    other = replace(conversation, id="x", kernel_id="other", round=4, policy="r4-x", replica=3)
    book, renamed = (codebook(env, s) for s in (scenario, replace(scenario, kernel_id="other")))
    assert code(other, renamed) == code(conversation, book)
    assert question(other, renamed) == question(conversation, book)
