"""Deal or No Deal: the edge table, rewards, J*, prompts and the two printed conversations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.rows import LIMIT, OPEN, REFUSED, division, read_row
from iterpo.domain import Ending, Role, Scenario, Split, Turn, action_indices
from iterpo.environments import bargain, boxed, make
from iterpo.environments.claims import said_share
from iterpo.environments.deal_or_no_deal import DealOrNoDeal, DealOrNoDealOptions
from iterpo.environments.sources import Division

Talk = Callable[..., tuple[Turn, ...]]
GAME = DealOrNoDeal()
KERNEL = GAME.scenario(Division((3, 1, 2), (2, 0, 2), (0, 6, 2)), Split.TRAIN)


def box(mine: str, theirs: str) -> str:
    return division(("book", "hat", "ball"), mine, theirs)


P1, P2 = box("3,0,1", "0,1,1"), box("0,1,2", "3,0,0")
MIRROR, TWO = box("0,1,1", "3,0,1"), box("2,0,2", "1,1,0")
YES, NO, END = "[ACCEPT]", "[REJECT]", "[NO DEAL]"
Share = tuple[int, int, int]

# (row and what it shows, messages from 1 on, the agent's share or how it stands, closed by)
ROWS: list[tuple[str, list[str], Share | str, str]] = [
    ("01 propose, accept", ["-", P1, YES], (3, 0, 1), "accept"),
    ("02 nothing stands", [YES], OPEN, ""),
    ("03 words close nothing", ["-", P1, "I agree"], OPEN, ""),
    ("04 own proposal", ["-", P1, "-", YES], OPEN, ""),
    ("05 replaced", [P2, P1, YES], (3, 0, 1), "accept"),
    ("06 stale", [P2, P1, "-", YES], OPEN, ""),
    ("07 verbatim echo", ["-", P1, P1], (3, 0, 1), "echo_verbatim"),
    ("08 mirror echo", ["-", P1, MIRROR], (3, 0, 1), "echo_mirror"),
    ("09 rejected", ["-", P1, NO, "-", YES], OPEN, ""),
    ("10 rejected, then proposed anew", ["-", P1, f"{NO} {P2}", YES], (3, 0, 0), "accept"),
    ("11 wrong sum", ["-", box("3,0,1", "0,1,0"), YES], OPEN, ""),
    ("12 negative", ["-", box("4,0,1", "-1,1,1"), YES], OPEN, ""),
    (
        "13a no hat",
        ["-", "[AGREED: MINE: book=3 ball=1; THEIRS: book=0 hat=1 ball=1]", YES],
        OPEN,
        "",
    ),
    ("13b no THEIRS", ["-", "[AGREED: MINE: book=3 hat=0 ball=1]", YES], OPEN, ""),
    (
        "14 other order",
        ["-", "[AGREED: MINE: ball=1 book=3 hat=0; THEIRS: hat=1 ball=1 book=0]", YES],
        (3, 0, 1),
        "accept",
    ),
    (
        "15 commas",
        ["-", "[AGREED: MINE: book=3, hat=0, ball=1, THEIRS: book=0, hat=1, ball=1]", "[accept]"],
        (3, 0, 1),
        "accept",
    ),
    (
        "16 THEIRS first",
        [
            "-",
            "[AGREED: THEIRS: book=0 hat=1 ball=1; MINE: book=3 hat=0 ball=1]",
            f"OK! {YES} great",
        ],
        (3, 0, 1),
        "accept",
    ),
    ("17 last box", ["-", f"{P1} or {TWO}", YES], (2, 0, 2), "accept"),
    ("18 superseded by oneself", ["-", P1, "-", TWO, YES], (2, 0, 2), "accept"),
    (
        "19 invalid supersedes nothing",
        ["-", P1, "-", box("3,0,1", "0,1,0"), YES],
        (3, 0, 1),
        "accept",
    ),
    ("20 box, then ACCEPT of the own", ["-", P1, "-", f"{P1} {YES}"], OPEN, ""),
    ("21 box, then ACCEPT of the other's", [P2, f"{P1} {YES}"], (3, 0, 0), "accept"),
    ("22 no deal", ["-", P1, END], REFUSED, ""),
    ("23 no deal, then a box", ["-", P1, f"{END} {P2}"], OPEN, ""),
    (
        "24a decimals",
        ["-", "[AGREED: MINE: book=3.0 hat=0 ball=1; THEIRS: book=0 hat=1 ball=1]", YES],
        OPEN,
        "",
    ),
    (
        "24b unknown item",
        ["-", "[AGREED: MINE: book=3 hat=0 ball=1 pen=0; THEIRS: book=0 hat=1 ball=1 pen=0]", YES],
        OPEN,
        "",
    ),
    (
        "24c plural",
        ["-", "[AGREED: MINE: books=3 hat=0 ball=1; THEIRS: books=0 hat=1 ball=1]", YES],
        OPEN,
        "",
    ),
    ("24d placeholders", ["-", box("n,n,n", "n,n,n"), YES], OPEN, ""),
    (
        "24e twice",
        ["-", "[AGREED: MINE: book=3 book=3 ball=1; THEIRS: book=0 hat=1 ball=1]", YES],
        OPEN,
        "",
    ),
    ("25 unclosed", ["-", "\\boxed{" + P1[1:-1], YES], OPEN, ""),
    ("26a ACCEPT with terms", ["-", P1, "[ACCEPT: MINE: book=3]"], OPEN, ""),
    ("26b ACCEPTED", ["-", P1, "[ACCEPTED]"], OPEN, ""),
    ("26c AGREED alone", ["-", P1, "[AGREED]"], OPEN, ""),
    ("27 withdrawn", ["-", P1, "-", NO, YES], OPEN, ""),
    ("28 last message", ["-"] * 9 + [P1], LIMIT, ""),
    ("29 accepted in the last message", ["-"] * 8 + [P2, YES], (3, 0, 0), "accept"),
    ("30 labels confused", [box("3,0,0", "0,1,2"), YES], (0, 1, 2), "accept"),
    ("31 everything", ["-", box("3,1,2", "0,0,0"), YES], (3, 1, 2), "accept"),
    ("32 proposed again", ["-", P1, NO, P1, YES], (3, 0, 1), "accept"),
    ("33 reject and the same words", ["-", P1, f"{NO} {P1}", YES], (0, 1, 1), "accept"),
]
TAUS = {"29": 5, "32": 2}
REWARDS = {"01": 1.6, "10": 1.2, "17": 1.6, "30": 0.8, "31": 2.0, "33": 0.4}


@pytest.mark.parametrize(
    ("row", "messages", "expected", "closed_by"), ROWS, ids=[row[0] for row in ROWS]
)
def test_edge_table(
    talk: Talk, row: str, messages: list[str], expected: Share | str, closed_by: str
) -> None:
    turns = talk(*messages)
    outcome = read_row(GAME, KERNEL, turns, expected)
    if outcome is None:
        return
    assert outcome.closed_by == closed_by
    if isinstance(expected, str):
        return
    assert tuple(outcome.terms.values()) == expected
    assert outcome.reward == pytest.approx((2 * expected[0] + 2 * expected[2]) / 5, abs=1e-12)
    if row[:2] in REWARDS:
        assert outcome.reward == pytest.approx(REWARDS[row[:2]], abs=1e-12)
    if row[:2] in TAUS:
        assert len(action_indices(turns)) == TAUS[row[:2]]


@pytest.mark.parametrize(
    ("echo", "copy", "closes"),
    [
        ("both", P1, True),
        ("both", MIRROR, True),
        ("verbatim", P1, True),
        ("verbatim", MIRROR, False),
        ("mirror", P1, False),
        ("mirror", MIRROR, True),
        ("none", P1, False),
        ("none", MIRROR, False),
        ("both", f"{NO} {P1}", False),
        ("both", f"{NO} {MIRROR}", False),
    ],
)
def test_option_echo(talk: Talk, echo: boxed.Echo, copy: str, closes: bool) -> None:
    game = DealOrNoDeal(DealOrNoDealOptions(echo=echo))
    assert (game.read(KERNEL, talk("-", P1, copy)) is not None) is closes


def test_option_strict_order(talk: Talk) -> None:
    strict = DealOrNoDeal(DealOrNoDealOptions(strict_order=True))
    (messages,) = (row[1] for row in ROWS if row[0].startswith("14"))
    assert strict.read(KERNEL, talk(*messages)) is None
    assert strict.read(KERNEL, talk("-", P1, YES)) is not None


def test_the_printed_conversations_read_as_the_paper_says(talk: Talk) -> None:
    """Appendix J.3.1, in our words, with the boxes as printed."""
    first = [
        "I like the hat most.",
        "I like books most. Books and balls for the hat?",
        "You give me the three books, you get the rest. " + box("3,0,0", "0,1,2"),
        "Your MINE has 3 books and no hat; let me count again.",
    ]
    outcome = GAME.read(KERNEL, talk(*first, *["Counting on."] * 6))
    assert outcome is not None
    assert (outcome.ending, outcome.closing_message + 1) == (Ending.TURN_LIMIT, 11)
    last = ["The hat and a ball, please.", f"Books and a ball for me: {P1}", f"Fair. {YES}"]
    turns = talk(*last)
    outcome = GAME.read(KERNEL, turns)
    assert outcome is not None
    assert (outcome.ending, len(turns)) == (Ending.AGREED, 4)
    assert dict(outcome.terms) == {"book": 3, "hat": 0, "ball": 1}
    assert outcome.reward == pytest.approx(8 / 5)


def test_golden_draw_and_the_first_j_star_example() -> None:
    draw = bargain.private_draw(0, 3, KERNEL.kernel_id)
    assert KERNEL.kernel_id == "dond-3,1,2|2,0,2|0,6,2"
    assert draw.u == pytest.approx(0.5330, abs=5e-5)
    assert draw.beta == 1.0
    partner = GAME.bargain(KERNEL)
    assert partner.aspirations == (9, 8, 7, 6, 4)
    assert [partner.reach(a) for a in partner.aspirations[1:]] == [1.6, 1.6, 2.0, 2.0]
    best = partner.j_star(0.9)
    assert best["agent_turn"] == pytest.approx(1.62)
    assert best["message"] == pytest.approx(1.1664)


def test_the_second_j_star_example() -> None:
    kernel = GAME.scenario(Division((1, 4, 1), (4, 1, 2), (0, 2, 2)), Split.TRAIN)
    partner = GAME.bargain(kernel)
    alphas = tuple(bargain.ceil(a) for a in bargain.aspirations(5, 9, 0.5, 5))
    assert alphas == (9, 9, 8, 7, 5)
    reach = [partner.reach(a) for a in alphas]
    assert reach[1:] == pytest.approx([0.8, 1.2, 1.2, 1.4])
    best = bargain.j_star(0.9, reach, range(2, 6))
    assert best["agent_turn"] == pytest.approx(1.08)
    assert best["message"] == pytest.approx(0.7086, abs=5e-5)


def test_private_values_never_reach_the_other_side() -> None:
    kernel = GAME.scenario(Division((1, 1, 1), (7, 2, 1), (0, 4, 6)), Split.TRAIN)
    changed = GAME.scenario(Division((1, 1, 1), (1, 1, 8), (0, 4, 6)), Split.TRAIN)
    for style in ("full", "compact"):
        game = make("deal_or_no_deal", prompt_style=style)
        turns = (game.opening(kernel),)
        assert game.opening(kernel) == game.opening(changed)
        theirs = game.view(kernel, Role.PARTNER, turns)
        assert theirs == game.view(changed, Role.PARTNER, turns)
        assert game.view(kernel, Role.AGENT, turns) != game.view(changed, Role.AGENT, turns)


def test_the_reminder_is_in_the_rendered_prompt_only() -> None:
    turns = (GAME.opening(KERNEL), Turn(Role.PARTNER, "Hi!"))
    view = GAME.view(KERNEL, Role.AGENT, turns)
    note = (
        "[PRIVATE NOTE | values: book=2 hat=0 ball=2 | pool: book=3 hat=1 ball=2 | "
        "maximise the value of your share]"
    )
    assert view.turns == turns
    assert view.messages()[-1].content == f"{note}\nHi!"
    partner = GAME.view(KERNEL, Role.PARTNER, turns[:1])
    assert partner.messages()[-1].content.startswith("[PRIVATE NOTE | values: book=0 hat=6 ball=2")
    silent = make("deal_or_no_deal", reminder=False).view(KERNEL, Role.AGENT, turns)
    assert silent.reminder is None


def test_prompts_tell_the_rules() -> None:
    prompt = GAME.view(KERNEL, Role.AGENT, ()).system
    for fact in (
        "book: 3 in the pool, worth 2 each",
        "hat: 1 in the pool, worth 0 each",
        "ball: 2",
        "MINE: book=n hat=n ball=n; THEIRS: book=n hat=n ball=n",
        "\\boxed{ACCEPT}",
        "\\boxed{REJECT}",
        "\\boxed{NO DEAL}",
        "closes nothing",
        "replaces",
    ):
        assert fact in prompt
    opening = GAME.opening(KERNEL)
    assert opening.scripted
    assert "3 books, 1 hat and 2 balls" in opening.text
    small = make("deal_or_no_deal", prompt_style="compact")
    assert small.view(KERNEL, Role.AGENT, ()).system == "book 3x2 hat 1x0 ball 2x2"


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("I take 2 books and the hat", (2, 1, 0)),
        ("I'd like to keep all books.", (3, 0, 0)),
        ("You can have the hat", (3, 0, 2)),
        ("You get both balls, I keep three books and the hat", (3, 1, 0)),
        ("I want the books, you take the hat and one ball", (3, 0, 1)),
        ("I want books", None),
        ("I want 4 books", None),
        ("I keep 2 books, you get 2 books, the hat and the balls", None),
        ("Do I like hats? Yes.", None),
        ("I take the ball", (0, 0, 1)),
        ("would you take two books?", (1, 1, 2)),
        ("If I take 3 books, would you take the hat and both balls?", (3, 0, 0)),
        ("I take 2 of the 3 books", (2, 0, 0)),
        ("I'll keep all three books and one of the two balls, ok for you?", (3, 0, 1)),
        ("I get **3 books** + *1 ball*", (3, 0, 1)),
        ("I keep 2 books, no hats", (2, 0, 0)),
        ("Let me have the hat; you take the books", (0, 1, 2)),
        ("I take 3 books. The hat is yours.", (3, 0, 0)),
        ("I don't want the hat", None),
        ("I won't take the hats", None),
        ("I will not take the hat", None),
        ("You can't have the hat", None),
        ("I don't think I can take 2 books", None),
        ("I cannot let you have the hat", None),
        ("I never said you get the hat", None),
        ("Why should you get the hat?", None),
        ("I want you to have the hat", None),
        ("Do you have to keep the hat?", None),
        ("I take everything except the hat", None),
        ("I take all but one book", None),
        ("You get all but the hat", None),
        ("I take 2 books but not the hat", None),
        ("I want the hat instead of two books", None),
        ("I want more than two books", None),
        ("I would take at least 2 books", None),
        ("I'd take one book less", None),
        ("I take 2 or 3 books", None),
        ("I take 2-3 books", None),
        ("I take 1.2 books", None),
        ("I take two of the 2 books", None),
        ("I want both books", None),
        ("I want either the hat or both balls", None),
        ("I get half the books", None),
        ("I take 2 books and the rest", None),
        ("You can have the hat and one ball, and I'd like all the books.", None),
        ("I take no books", None),
        ("I want a hat and a hat", None),
        ("", None),
    ],
)
def test_plain_text_claims(text: str, share: Share | None) -> None:
    assert said_share(text, ("book", "hat", "ball"), (3, 1, 2)) == share


@given(
    st.text(),
    st.lists(st.sampled_from(["I take", "you get", "2", "books", " ", ".", "hat", "the"])),
)
def test_claims_never_raise(text: str, words: list[str]) -> None:
    for said in (text, " ".join(words)):
        share = said_share(said, ("book", "hat", "ball"), (3, 1, 2))
        assert share is None or all(0 <= s <= c for s, c in zip(share, (3, 1, 2), strict=True))


def test_an_environment_is_a_pure_function_of_its_facts(talk: Talk) -> None:
    other = Scenario("another name", "deal_or_no_deal", Split.HELDOUT, dict(KERNEL.facts))
    turns = talk("-", P1, YES)
    assert GAME.read(KERNEL, turns) == GAME.read(other, turns)
