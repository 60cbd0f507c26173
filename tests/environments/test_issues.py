"""Games over issues: reading deals in boxes and in words, and the grid of all deals."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iterpo.domain import Role, Turn
from iterpo.environments.issues import Agenda, Issue, IssueBargain, Sheet, _utilities, points

AGENDA = Agenda(
    (
        Issue("Price", ("3", "4", "5"), "Price", r"\$? ?", gap=2, ordered=True),
        Issue("Colour", ("Red", "Blue"), "Colou?r", bare=""),
        Issue("F", ("1", "2"), "F", before="F?", bare="F"),
    ),
    gives=0,
)
# The last issue depends on the colour.
AGENT: Sheet = ((4.0, 2.0, 0.0), (1.0, 0.0), ((3.0, 0.0), (0.0, 5.0)))
PARTNER: Sheet = ((0.0, 3.0, 6.0), (0.0, 2.0), ((2.0, 0.0), (2.0, 0.0)))
BARGAIN = IssueBargain(
    0, "full", "bilateral", AGENDA, AGENT, PARTNER, (9.0, 7.0, 5.0, 3.0, 1.0), "I like blue"
)


@pytest.mark.parametrize(
    ("body", "terms"),
    [
        ("Price=3 Colour=Red F=1", (0, 0, 0)),
        ("f=f2;color = BLUE , PRICE=$ 5", (2, 1, 1)),
        ("Price=3 Colour=Red", None),
        ("Price=3 Colour=Red F=1 F=1", None),
        ("Price=3 Colour=Red F=1 Size=2", None),
        ("Price=3 Colour=Red F=3", None),
        ("Price=3 Colour=Red F=G1", None),
        ("Price=3 Colour=Redder F=1", None),
        ("Price=3 Colour=Red F=1,", None),
        ("Price=3 Colour=RedF=1", None),
        ("Price:3 Colour=Red F=1", None),
        ("Price=33 Colour=Red F=1", None),
        ("Price=3.5 Colour=Red F=1", None),
        ("price=3 and colour=red f=1", None),
        ("Price=X Colour=Y F=Z", None),
        ("", None),
    ],
)
def test_boxes(body: str, terms: tuple[int, ...] | None) -> None:
    assert AGENDA.read(body) == terms


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Price=3, Colour: red, F=1?", (0, 0, 0)),
        ("How about blue", (None, 1, None)),
        ("F2 for Price: $4.", (1, None, 1)),
        ("Red, or blue?", None),
        ("Red? Red!", (None, 0, None)),
        ("Price=6", None),
        ("Price=3-5", None),
        ("Price=4.5", None),
        ("F3", None),
        ("F=G1", None),
        ("Price: as you like, red", None),
        ("Not red", None),
        ("I don’t want red", None),
        ("I can't do that, so F1", (None, None, 0)),
        ("bored redder off12 XF1 $F1", None),
        (r"\boxed{AGREED: Price=3 Colour=Red F=1}", None),
        ("What do you want?", None),
        ("", None),
    ],
)
def test_words(text: str, said: tuple[int | None, ...] | None) -> None:
    assert AGENDA.said(text) == said


def _turns(*messages: str) -> tuple[Turn, ...]:
    roles = (Role.AGENT, Role.PARTNER)
    return tuple(Turn(roles[i % 2], m, scripted=i == 0) for i, m in enumerate(messages))


def test_what_is_left_unsaid_is_filled_from_the_partners_last_box_so_far() -> None:
    first, second = (BARGAIN.box(t, Role.PARTNER) for t in ((2, 1, 0), (1, 0, 1)))
    own = BARGAIN.box((0, 0, 0), Role.AGENT)
    assert BARGAIN.plain_offer("Price=3") is None
    assert BARGAIN.plain_offer("Price=3", _turns("Hi", "-", own, "-")) is None
    turns = _turns("Hi", first, "hm", second)
    assert BARGAIN.plain_offer("Price=3", turns[:2]) == (0, 1, 0)
    assert BARGAIN.plain_offer("Price=3", turns) == (0, 0, 1)
    assert BARGAIN.plain_offer("Price=3 red F1", turns) == (0, 0, 0)
    assert BARGAIN.plain_offer("hm", turns) is None


@given(
    st.text(),
    st.lists(
        st.sampled_from(["Price", "=", "$", "3", " ", ",", "red", "F", "F1", ":", ".", "not"]),
        max_size=30,
    ),
)
def test_reading_never_raises(text: str, words: list[str]) -> None:
    for body in (text, "".join(words)):
        for read in (AGENDA.read(body), AGENDA.said(body)):
            assert read is None or len(read) == 3


def test_long_messages_are_read_in_linear_time() -> None:
    start = time.process_time()
    for part in ("Price=3 ", "red ", "F1 not ", "Price=", "Price ", "=", "$ ", "redder "):
        AGENDA.read(part * 20000)
        AGENDA.said(part * 20000)
    assert time.process_time() - start < 2


def test_cells_are_deals_in_lexicographic_order() -> None:
    deals = [AGENDA.terms(cell) for cell in range(12)]
    assert deals == sorted(set(deals))
    assert deals[-1] == (2, 1, 1)
    assert {AGENDA.read(AGENDA.written(terms)) for terms in deals} == set(deals)


@given(st.lists(st.floats(0, 1), min_size=9, max_size=9))
def test_tables_and_single_deals_agree_to_the_last_bit(x: list[float]) -> None:
    sheet: Sheet = (tuple(x[:3]), tuple(x[3:5]), (tuple(x[5:7]), tuple(x[7:])))
    table = _utilities(sheet).tolist()
    assert table == [points(sheet, AGENDA.terms(cell)) for cell in range(12)]


def test_distances() -> None:
    away = AGENDA.distances((0, 1, 0))
    assert away.shape == (12,)
    for cell, distance in enumerate(away):
        price, colour, f = AGENDA.terms(cell)
        assert distance == 2 * price + (colour != 1) + (f != 0)


def test_counters() -> None:
    # Nothing offered: the partner's best deal (5, blue, F1 = 10), with the price as low as can be.
    assert BARGAIN.counter(9, None, None) == (2, 1, 0)
    assert BARGAIN.counter(7, None, None) == (1, 1, 0)
    assert BARGAIN.counter(1, None, None) == (0, 1, 0)
    asking = IssueBargain(0, "full", "bilateral", Agenda(AGENDA.issues), AGENT, PARTNER, (1.0,), "")
    assert asking.counter(1, None, None) == (2, 1, 0)
    # (4, red, F=1) and (4, blue, F=2) are equally near and worth 5 each: the first in order.
    assert BARGAIN.worth((1, 0, 1)) == 3
    assert BARGAIN.counter(5, (1, 0, 1), None) == (1, 0, 0)
    # (5, red, F=2) and (4, blue, F=1) are equally near: the one worth more, though later in order.
    assert BARGAIN.counter(6, (1, 0, 1), None) == (1, 1, 0)
    dear = dataclasses.replace(BARGAIN, partner=((0.0, 3.0, 9.0), *PARTNER[1:]))
    assert dear.counter(6, (1, 0, 1), None) == (2, 0, 1)
    assert BARGAIN.counter(3, (1, 0, 1), None) == (1, 0, 1)


def test_best_is_the_agents_favourite_then_the_partners() -> None:
    by_hand = {}
    deals = [AGENDA.terms(cell) for cell in range(12)]
    for a in (1, 3, 5, 7, 9):
        good = [t for t in deals if points(PARTNER, t) >= a]
        by_hand[a] = min(good, key=lambda t: (-points(AGENT, t), -points(PARTNER, t), t))
    assert {a: BARGAIN.best(a) for a in by_hand} == by_hand
    equal: Sheet = ((1.0, 1.0, 1.0), (0.0, 0.0), (0.0, 0.0))
    shared = IssueBargain(0, "full", "bilateral", AGENDA, equal, PARTNER, (1.0,), "")
    assert shared.best(1) == (2, 1, 0)


def test_reward_may_have_a_unit_and_a_threshold() -> None:
    strict = IssueBargain(
        0, "full", "bilateral", AGENDA, AGENT, PARTNER, (9.0, 1.0), "", unit=2, least=6
    )
    assert strict.reward((0, 0, 0)) == 4.0
    assert strict.reward((1, 0, 0)) == 3.0
    assert strict.reward((2, 0, 0)) == 0.0
    assert strict.reach(1) == max(strict.reward(AGENDA.terms(c)) for c in range(12))


def test_j_star_is_unknown_under_unilateral_closing() -> None:
    open_ended = IssueBargain(
        0, "full", "unilateral", AGENDA, AGENT, PARTNER, BARGAIN.aspirations, ""
    )
    assert open_ended.j_star(0.9) == {}
    assert set(BARGAIN.j_star(0.9)) == {"agent_turn", "message"}


def test_drawn_terms_are_deals() -> None:
    rng = np.random.default_rng(0)
    drawn = {BARGAIN.draw_terms(rng) for _ in range(300)}
    assert drawn == {AGENDA.terms(cell) for cell in range(12)}
