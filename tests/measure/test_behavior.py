"""code: what counts as an offer, and what it answers, with a codebook made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from iterpo.domain import Conversation, Ending, Outcome, Role, Turn
from iterpo.measure.behavior import BEHAVIOURS, Codebook, Terms, code, coders


def _said(turns: Sequence[Turn], i: int) -> Terms | None:
    """ "7" is an offer of 7, "6 2" of two issues."""
    numbers = turns[i].text.split()
    return tuple(map(int, numbers)) if numbers and all(n.isdigit() for n in numbers) else None


def _points(role: Role, terms: Terms) -> tuple[float, ...]:
    return tuple(float(t if role is Role.AGENT else -t) for t in terms)


PRICE = Codebook((r"\$",), _said, _points, rounding=0.5)
PAIR = Codebook(("pay", "leave"), _said, _points, best=(9.0, 9.0))
NEVER = Outcome(Ending.TURN_LIMIT, 0.0)


def talk(*said: str, outcome: Outcome = NEVER) -> Conversation:
    turns = [Turn(Role.AGENT, "100", scripted=True)]
    turns += [Turn(Role.PARTNER if i % 2 == 0 else Role.AGENT, t) for i, t in enumerate(said)]
    return Conversation("c", "k", "toy", tuple(turns), outcome, "")


def test_the_opening_is_no_offer_and_silence_no_position() -> None:
    assert code(talk("40", "60"), PRICE)["concession"] == ()
    asked = replace(PRICE, asked=(100,))
    codes = code(talk("40", "70"), asked)
    assert (codes["offer"], codes["concession"], codes["splits_difference"]) == ((2,), (2,), (2,))


def test_half_way_is_within_a_twentieth_of_the_difference_or_half_a_step() -> None:
    far = [
        code(talk("0", "100", "0", str(x)), PRICE)["splits_difference"] for x in (44, 45, 55, 56)
    ]
    assert far == [(), (4,), (4,), ()]
    near = [code(talk("50", "53", "50", str(x)), PRICE)["splits_difference"] for x in (51, 52, 53)]
    assert near == [(4,), (4,), ()]  # 51.5 can't be had in whole steps


def test_closing_is_consent_except_where_one_box_closes() -> None:
    closed = Outcome(Ending.AGREED, 1.0, closed_by="match", closing_message=2)
    # the partner has said 45 since, but what the agent takes is what stood
    assert code(talk("45", "40", outcome=closed), PRICE)["offer"] == ()
    alone = replace(closed, closed_by="box")
    assert code(talk("45", "40", outcome=alone), PRICE)["offer"] == (2,)
    by_partner = replace(closed, closing_message=3)
    assert code(talk("45", "40", "40", outcome=by_partner), PRICE)["offer"] == (2,)


def test_a_targeted_concession_needs_a_contest_and_a_rest() -> None:
    def targeted(*said: str) -> tuple[int, ...]:
        return code(talk(*said), PAIR)["targeted_concession"]

    assert targeted("hm", "8 8", "6 8", "7 8") == (4,)  # the partner's offer differs on pay
    assert targeted("hm", "8 8", "the PAY is bad", "7 8") == (4,)  # or it is named
    assert targeted("hm", "8 8", "hm", "7 8") == ()  # or neither
    assert targeted("hm", "8 8", "6 6", "7 7") == ()  # nothing is held fixed
    assert targeted("hm", "8 8", "6 8", "9 8") == ()  # it takes more
    assert targeted("hm", "8 8", "6 6", "7 9") == ()  # it takes elsewhere
    assert targeted("8 6", "7 8") == ()  # nothing was offered before
    assert targeted("the pay", "8 8", "hm", "7 8") == ()  # said before the offer


def test_of_equal_favourites_any_will_do() -> None:
    assert code(talk("hm", "1 9"), PAIR)["claims_top_issue"] == (2,)
    assert code(talk("hm", "1 9"), replace(PAIR, best=(9.5, 9.0)))["claims_top_issue"] == ()


def test_an_agent_that_never_speaks_shows_nothing() -> None:
    assert not any(code(talk("No."), PAIR).values())


def test_who_codes_depends_on_what_the_game_has() -> None:
    def by(name: str, book: Codebook | None) -> tuple[str, ...]:
        return coders(next(b for b in BEHAVIOURS if b.name == name), book)

    assert by("splits_difference", PRICE) == ("rule", "judge")
    assert by("splits_difference", PAIR) == ("judge",)
    assert by("logrolling", PRICE) == ()
    assert by("reveals_values", PAIR) == ()  # nothing is private
    assert by("logrolling", None) == ("judge",)
    assert by("offer", None) == ()
