"""Craigslist: the edge table, rewards, options, prompts, golden draw and J* examples."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.rows import LIMIT, OPEN, REFUSED, read_row
from iterpo.domain import Conversation, Ending, Role, Scenario, Split, Turn, discounted_return
from iterpo.environments import bargain, boxed, make
from iterpo.environments.craigslist import Craigslist, CraigslistOptions, PriceBargain, _limits
from iterpo.environments.sources import Listing
from iterpo.errors import ConfigError, DataError

Talk = Callable[..., tuple[Turn, ...]]
GAME = Craigslist()


def kernel(price: float = 265, target: float = 200, title: str = "Road bike") -> Scenario:
    facts = {
        "title": title,
        "list_price": price,
        "target": target,
        "description": "Light frame. New tyres.",
        "buyer_description": "Light frame.",
    }
    return Scenario("cl-S_01", "craigslist", Split.TRAIN, facts)


def box(price: str) -> str:
    return f"[AGREED: {price}]"


A, B, END = box("$200"), box("$240"), "[NO DEAL]"
DASHES = ["-"] * 8


def both(price: str) -> list[str]:
    return [box(price), box(price)]


# (row and what it shows, messages from 1 on, dollars of the deal or how it stands, tau)
ROWS: list[tuple[str, list[str], object, int]] = [
    ("01 one-sided", ["-", B], OPEN, 0),
    ("02 haggling", [A, B, B], 240, 1),
    ("03 slot still stands", [A, B, "fine, $240", A], 200, 2),
    ("04 words close nothing", ["-", B, "ok deal"], OPEN, 0),
    ("05 commas, cents, no $", [box("$1,250"), box("1250.00")], 1250, 1),
    ("06 malformed comma", both("$1,25"), OPEN, 0),
    ("07 other currency", both("€200"), OPEN, 0),
    ("08 above the list price", [box("$300"), box("$300 ")], 300, 1),
    ("09 last box", [f"{box('$210')} or {box('$220')}", box("$210")], OPEN, 0),
    ("10 unclosed", ["\\boxed{AGREED: $200", A], OPEN, 0),
    ("11 wrapped", ["\\boxed{\\text{AGREED: \\$200}}", "[agreed: 200 USD]"], 200, 1),
    ("12 no deal, then a box", [f"{END} or rather {A}", A], 200, 1),
    ("13 box, then no deal", [f"{A} no, {END}"], REFUSED, 0),
    ("14a placeholder <price>", [A, box("$<price>"), "-", A], 200, 2),
    ("14b placeholder X", [A, box("$X"), "-", A], 200, 2),
    ("15 extra words", [A, box("$200 and you collect")], OPEN, 0),
    ("16a negative", both("$-5"), OPEN, 0),
    ("16b nothing", both("$0"), OPEN, 0),
    ("16c range", both("$200-220"), OPEN, 0),
    ("16d thousands as k", both("$4.5k"), OPEN, 0),
    ("17 own offer repeated", ["-", B, "-", B], OPEN, 0),
    ("18 accept is no token", [A, "[ACCEPT]"], OPEN, 0),
    ("19 nobody can answer", [*DASHES, "-", A], LIMIT, 5),
    ("20 last message closes", [A, *DASHES, A], 200, 5),
    ("21 a sum is no box", [A, f"{A} as [17]"], 200, 1),
    ("22 box in a box", ["\\boxed{\\boxed{AGREED: $200}}", A], 200, 1),
    ("23 unclosed, then a box", [A, f"\\boxed{{AGREED: $2 then {A}"], 200, 1),
]


@pytest.mark.parametrize(
    ("messages", "expected", "tau"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS]
)
def test_edge_table(talk: Talk, messages: list[str], expected: object, tau: int) -> None:
    turns = talk(*messages)
    outcome = read_row(GAME, kernel(), turns, expected)
    if outcome is None:
        return
    assert outcome.reward is not None
    if outcome.ending is Ending.AGREED:
        assert isinstance(expected, int)
        assert outcome.terms == {"price": expected}
        assert outcome.reward == pytest.approx(expected / 265, abs=1e-12)
        assert outcome.closed_by == "match"
        assert outcome.flags == (("above_list",) if expected > 265 else ())
    played = Conversation("c", "k", "craigslist", turns, outcome, "")
    worth = 0.9 ** max(tau - 1, 0) * outcome.reward
    assert discounted_return(played, 0.9, "agent_turn") == pytest.approx(worth, abs=1e-12)
    by_message = 0.9 ** len(messages) * outcome.reward
    assert discounted_return(played, 0.9, "message") == pytest.approx(by_message, abs=1e-12)


@pytest.mark.parametrize(
    ("price", "listed", "reward"),
    [("$32", 40, 0.8), ("$240", 265, 0.9057), ("$300", 265, 1.1321), ("$7.50", 10.0, 0.75)],
)
def test_reward_examples(talk: Talk, price: str, listed: float, reward: float) -> None:
    outcome = GAME.read(kernel(listed, 5), talk(*both(price)))
    assert outcome is not None
    assert outcome.reward == pytest.approx(reward, abs=5e-5)


def test_a_box_above_the_limit_of_messages_does_not_count(talk: Talk) -> None:
    outcome = GAME.read(kernel(), talk(A, *DASHES, "-", A, A))
    assert outcome is not None
    assert (outcome.ending, outcome.closing_message) == (Ending.TURN_LIMIT, 10)


def test_option_reward_cap(talk: Talk) -> None:
    capped = Craigslist(CraigslistOptions(reward_cap=1.0))
    high = capped.read(kernel(), talk(*both("$300")))
    low = capped.read(kernel(), talk(*both("$240")))
    assert high is not None
    assert low is not None
    assert (high.reward, high.flags) == (1.0, ("above_list",))
    assert low.reward == pytest.approx(240 / 265)
    whole = make("craigslist", reward_cap=1).read(kernel(), talk(*both("$300")))
    assert whole is not None
    assert isinstance(whole.reward, float)
    with pytest.raises(ConfigError, match=r"'reward_cap' is 0\.0; accepted: above 0"):
        make("craigslist", reward_cap=0.0)


def test_unilateral_closes_at_the_first_box(talk: Talk) -> None:
    game = Craigslist(CraigslistOptions(closing="unilateral"))
    outcome = game.read(kernel(), talk("-", box("$265")))
    assert outcome is not None
    assert (outcome.reward, outcome.closed_by, outcome.closing_message) == (1.0, "box", 2)
    first = game.read(kernel(), talk(A))
    assert first is not None
    played = Conversation("c", "k", "craigslist", talk(A), first, "")
    assert discounted_return(played, 0.9, "agent_turn") == pytest.approx(200 / 265)
    assert game.bargain(kernel()).j_star(0.9) == {}


def _dollars(limits: tuple[int, ...]) -> list[float]:
    return [limit / 100 for limit in limits]


# (list price, target, share, beta, limits, J* by agent turn, J* by message)
J_STARS = [
    (265, 243, 0.8, 1.0, [243, 247, 251, 256, 260], 0.9321, 0.7428),
    (100, 50, 0.9, 1.0, [50, 61, 72, 83, 95], 0.6926, 0.4447),
]


@pytest.mark.parametrize(
    ("price", "target", "share", "beta", "limits", "agent_turn", "message"), J_STARS
)
def test_j_star_examples(
    price: int,
    target: int,
    share: float,
    beta: float,
    limits: list[float],
    agent_turn: float,
    message: float,
) -> None:
    found = _limits(100 * price, 100 * target, share, beta)
    assert _dollars(found) == limits
    alphas = tuple(float(100 * price - limit) for limit in found)
    best = PriceBargain(GAME, kernel(price, target), 100 * price, alphas).j_star(0.9)
    assert best["agent_turn"] == pytest.approx(agent_turn, abs=5e-5)
    assert best["message"] == pytest.approx(message, abs=5e-5)


def test_waiting_pays_in_one_unit_and_not_in_the_other() -> None:
    reach = [limit / 10000 for limit in _limits(10000, 5000, 0.9, 1.0)]
    waits = [0.9 ** (t - 1) * reach[t] for t in range(1, 5)]
    assert waits == pytest.approx([0.61, 0.648, 0.6723, 0.6926], abs=5e-5)
    by_message = [0.9 ** (2 * t + 1) * reach[t] for t in range(1, 5)]
    assert max(by_message) == by_message[0] == pytest.approx(0.4447, abs=5e-5)


def test_golden_draw() -> None:
    golden = Scenario("cl-S_To118PXuNicOd8SO", "craigslist", Split.TRAIN, kernel(265, 243).facts)
    draw = bargain.private_draw(0, 1, golden.kernel_id)
    assert 0.2 + 0.7 * draw.u == pytest.approx(0.3180, abs=5e-5)
    assert draw.beta == 0.5
    partner = GAME.bargain(golden)
    assert [partner.best(a) / 100 for a in partner.aspirations] == [243, 243, 244, 246, 249]
    best = partner.j_star(0.9)
    assert best["agent_turn"] == pytest.approx(0.9170, abs=5e-5)
    assert best["message"] == pytest.approx(0.7428, abs=5e-5)


@pytest.mark.parametrize(
    ("price", "target", "limits"),
    [
        (20, 10, [10, 12, 14, 16, 19]),
        (19.99, 10, [10, 12.24, 14.49, 16.74, 18.99]),
        (10, 5, [5, 6.12, 7.25, 8.37, 9.5]),
        (30, 20.5, [20, 22, 24, 26, 29]),
        (30, 0.4, [0.4, 7.06, 13.72, 20.38, 27.04]),
        (265, 265, [265] * 5),
        (0.02, 0.01, [0.01] * 5),
    ],
)
def test_limits_are_whole_dollars_from_a_list_price_of_20(
    price: float, target: float, limits: list[float]
) -> None:
    assert _dollars(_limits(round(100 * price), round(100 * target), 0.9, 1.0)) == limits


@given(
    price=st.integers(1, 10**9),
    part=st.floats(0, 1),
    share=st.floats(0.2, 0.9),
    beta=st.sampled_from([0.5, 1.0, 2.0]),
)
def test_the_buyer_rises_from_its_target_and_never_above_the_list_price(
    price: int, part: float, share: float, beta: float
) -> None:
    target = max(1, round(part * price))
    limits = _limits(price, target, share, beta)
    assert list(limits) == sorted(limits)
    assert 0 < limits[0] <= target
    assert limits[-1] <= price
    partner = PriceBargain(GAME, kernel(), price, tuple(float(price - limit) for limit in limits))
    for alpha, limit in zip(partner.aspirations, limits, strict=True):
        assert partner.best(alpha) == partner.counter(alpha, 1, 1) == limit
        assert partner.worth(limit) >= alpha > partner.worth(limit + 1)


@pytest.mark.parametrize(
    ("text", "dollars"),
    [
        ("How about $240?", 240),
        ("$265 is what I ask, but $250, ok", 250),
        ("I could do $1,250.50.", 1250.5),
        ("It is worth \\$240 at least", 240),
        ("$ 240", 240),
        ("240 dollars", None),
        ("$0", None),
        ("$240 or $200-220", None),
        ("between $200, $4.5k", None),
        ("$1,25", None),
        ("$33.333", None),
        ("240$", None),
        ("$", None),
        ("only $5 off: [AGREED: $240]", 5),
        ("I can't go below $240", 240),
        ("Why not $240?", 240),
        ("My price is $240, not a cent less", 240),
        ("I can't do $200, but $240 works", 240),
        ("I can’t accept $200", None),
        ("It's $240, not $200", None),
        ("$200–220", None),
        ("$2 400", None),
        ("$2\u202f400", None),
        (B, None),
        ("nothing", None),
    ],
)
def test_plain_text_offers(talk: Talk, text: str, dollars: float | None) -> None:
    said = GAME.bargain(kernel()).plain_offer(talk("-", text)[-1].text, ())
    assert said == (None if dollars is None else round(100 * dollars))


@given(st.text(), st.lists(st.sampled_from(["$", "1", ",000", ".5", " ", "\\boxed{", "}", "k"])))
def test_plain_text_offers_never_raise(text: str, words: list[str]) -> None:
    for said in (text, "".join(words)):
        price = GAME.bargain(kernel()).plain_offer(said, ())
        assert price is None or price > 0


@pytest.mark.parametrize(
    ("price", "written"), [(265, "$265"), (265.0, "$265"), (7.5, "$7.50"), (56500.0, "$56500")]
)
def test_prices_are_printed_whole_or_with_two_decimals(price: float, written: str) -> None:
    scenario = kernel(price, 5)
    for style in ("full", "compact"):
        game = make("craigslist", prompt_style=style)
        words = game.opening(scenario).text.split()
        assert written in words
    partner = GAME.bargain(scenario)
    terms = round(100 * price)
    assert partner.box(terms, Role.PARTNER) == f"\\boxed{{AGREED: {written}}}"
    assert partner.boxed_offer(partner.box(terms, Role.AGENT)) == terms


def test_prompts_tell_the_rules() -> None:
    vendor, buyer = (GAME.view(kernel(265, 243), role, ()).system for role in Role)
    for prompt in (vendor, buyer):
        for fact in (
            "Road bike",
            "$265",
            "\\boxed{AGREED: $<price>}",
            "\\boxed{NO DEAL}",
            "both of you have boxed the same price",
        ):
            assert fact in prompt
        assert boxed.boxes(prompt) == ("AGREED: $<price>", "NO DEAL")
    assert "list price" in vendor
    assert "best price" in vendor
    assert "target price is $243" in buyer
    alone = make("craigslist", closing="unilateral").view(kernel(), Role.AGENT, ()).system
    assert "first valid box" in alone
    assert "both of you" not in alone


def test_the_opening_names_item_and_price_and_is_no_offer(talk: Talk) -> None:
    opening = GAME.opening(kernel(title="Café table"))
    assert opening.scripted
    for part in ("Hi", "selling", "Café table", "$265", "interest"):
        assert part in opening.text
    assert boxed.boxes(opening.text) == ()
    assert GAME.read(kernel(), (opening, *talk(box("$265"))[1:])) is None


def test_compact_prompts_are_a_few_tokens() -> None:
    small = make("craigslist", prompt_style="compact", item_text="title_and_description")
    assert small.view(kernel(), Role.AGENT, ()).system == "sell 265"
    assert small.view(kernel(265, 243), Role.PARTNER, ()).system == "buy 265 target 243"
    assert small.opening(kernel()).text == "Sell Road bike? $265"


def test_option_item_text_shows_the_buyer_the_first_half() -> None:
    game = Craigslist(CraigslistOptions(item_text="title_and_description"))
    vendor, buyer = (game.view(kernel(), role, ()).system for role in Role)
    assert "Light frame. New tyres." in vendor
    assert "Light frame." in buyer
    assert "New tyres" not in buyer
    assert "Light frame" not in GAME.view(kernel(), Role.AGENT, ()).system
    listing = Listing("cl-S_01", "Bike", "bike", 100, 70, "Light frame.", "Light", "111")
    assert game.scenario(listing, Split.TRAIN).facts["buyer_description"] == "Light"
    assert set(GAME.scenario(listing, Split.TRAIN).facts) == {"title", "list_price", "target"}


def test_the_target_never_reaches_the_vendor() -> None:
    for style in ("full", "compact"):
        for text in ("title", "title_and_description"):
            game = make("craigslist", prompt_style=style, item_text=text)
            a, b = kernel(265, 243), kernel(265, 131)
            turns = (game.opening(a), Turn(Role.PARTNER, "hi"))
            assert game.opening(a) == game.opening(b)
            assert game.view(a, Role.AGENT, turns) == game.view(b, Role.AGENT, turns)
            assert game.view(a, Role.PARTNER, turns) != game.view(b, Role.PARTNER, turns)
            assert game.view(a, Role.PARTNER, turns).reminder is None


def test_a_foreign_or_damaged_scenario_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="'x' has no fact 'title'"):
        GAME.opening(Scenario("x", "craigslist", Split.TRAIN, {}))
    for price in (0, -1.0, "265", None, float("nan"), float("inf")):
        with pytest.raises(DataError, match="accepted: dollars above 0"):
            GAME.opening(kernel(price))  # type: ignore[arg-type]
