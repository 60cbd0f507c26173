"""Ultimatum: the edge table, rewards, scenarios, golden draws and J* of the specification."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from iterpo.domain import (
    Conversation,
    Ending,
    Role,
    Scenario,
    Split,
    Turn,
    action_indices,
    discounted_return,
)
from iterpo.environments import bargain, boxed, make
from iterpo.environments.ultimatum import SplitBargain, Ultimatum, UltimatumOptions
from iterpo.errors import DataError

Talk = Callable[..., tuple[Turn, ...]]
GAME = Ultimatum()
S = "AGREED: split="
OPEN, LIMIT, REFUSED = "open", "limit", "no deal"


def kernel(pool: int = 100, rounds: int = 4, replicate: int = 0) -> Scenario:
    facts = {"pool": pool, "rounds": rounds}
    return Scenario(f"ult-p{pool}-r{rounds}-{replicate}", "ultimatum", Split.TRAIN, facts)


# (row and what it shows, messages from 1 on, dollars of the deal or how it stands)
ROWS: list[tuple[str, list[str], object]] = [
    ("01 proposal and its copy", ["-", f"[{S}$60]", f"[{S}$60]"], 60),
    ("02 forty is not sixty", [f"[{S}$40]", f"[{S}$60]"], OPEN),
    ("03 key missing", [f"[{S}$50]", "[AGREED: $50]"], OPEN),
    ("04 above the pool", [f"[{S}$120]", f"[{S}$120]"], OPEN),
    ("05 all, with and without $", [f"[{S}$100]", f"[{S}100]"], 100),
    ("06 nothing", [f"[{S}$0]", f"[{S}$0]"], 0),
    ("07a two amounts", [f"[{S}$60/$40]", f"[{S}$60/$40]"], OPEN),
    ("07b percent", [f"[{S}60%]", f"[{S}60%]"], OPEN),
    ("07c negative", [f"[{S}$-10]", f"[{S}$-10]"], OPEN),
    ("08a cents", [f"[{S}$33.33]", f"[{S}$33.33]"], 33.33),
    ("08b three decimals", [f"[{S}$33.333]", f"[{S}$33.333]"], OPEN),
    ("09 reject is no token", [f"[{S}$50]", "[REJECT]"], OPEN),
    ("10 no deal", [f"[{S}$50]", "[NO DEAL]"], REFUSED),
    ("11 limit", ["-", "-", f"[{S}$50]", f"[{S}$55]", f"[{S}$55]"], LIMIT),
    ("12 haggling", [f"[{S}$40]", f"[{S}$60]", f"[{S}$45]", f"[{S}$45]"], 45),
    ("13 slot still stands", [f"[{S}$40]", f"[{S}$60]", "-", f"[{S}$40]"], 40),
    ("14 spelling", ["[AGREED: Split: $50]", "[AGREED: SPLIT=$50.00]"], 50),
    ("15 last box", [f"[{S}$50]", f"[{S}$60] or [{S}$50]"], 50),
    ("16 last box refuses", [f"[{S}$50]", f"[{S}$50] no, [NO DEAL]"], REFUSED),
    ("17 face value", [f"[{S}$40] so 40 for me", f"[{S}$40]"], 40),
]


TAUS = {"01": 1, "12": 2}


@pytest.mark.parametrize(("row", "messages", "expected"), ROWS, ids=[r[0] for r in ROWS])
def test_edge_table(talk: Talk, row: str, messages: list[str], expected: object) -> None:
    turns = talk(*messages)
    outcome = GAME.read(kernel(), turns)
    if expected == OPEN:
        assert outcome is None
        return
    assert outcome is not None
    ending = {LIMIT: Ending.TURN_LIMIT, REFUSED: Ending.REFUSED}.get(str(expected), Ending.AGREED)
    assert outcome.ending is ending
    if ending is Ending.AGREED:
        assert isinstance(expected, int | float)
        assert outcome.terms == {"split": expected}
        assert outcome.reward == pytest.approx(expected / 50, abs=1e-12)
        assert outcome.closed_by == "match"
        assert outcome.flags == (("perspective_suspect",) if row.startswith("17") else ())
        assert len(action_indices(turns)) == TAUS.get(row[:2], len(messages) // 2)
    else:
        assert (outcome.reward, dict(outcome.terms)) == (0.0, {})
    assert outcome.closing_message == min(len(messages), 4)


def test_every_row_of_the_table_is_open_until_its_last_message(talk: Talk) -> None:
    for _, messages, _ in ROWS:
        for n in range(min(len(messages), 4)):
            assert GAME.read(kernel(), talk(*messages)[: n + 1]) is None


@pytest.mark.parametrize(
    ("pool", "split", "reward"),
    [(100, "60", 1.2), (1000, "450", 0.9), (100, "33.33", 0.6666), (100, "100", 2.0)],
)
def test_reward_examples(talk: Talk, pool: int, split: str, reward: float) -> None:
    outcome = GAME.read(kernel(pool, 4), talk(f"[{S}${split}]", f"[{S}{split}]"))
    assert outcome is not None
    assert outcome.reward == pytest.approx(reward, abs=1e-12)


def test_perspective_is_only_suspected(talk: Talk) -> None:
    flagged = GAME.read(kernel(), talk(f"[{S}$40] so $40 for me", f"[{S}$40]"))
    clear = GAME.read(kernel(), talk(f"[{S}$40] so $60 for me", f"[{S}$40]"))
    assert flagged is not None
    assert clear is not None
    assert (flagged.flags, clear.flags) == (("perspective_suspect",), ())
    assert flagged.reward == clear.reward


@pytest.mark.parametrize(
    ("messages", "n_messages", "agent_turn", "message"),
    [
        (["-", "[X]", "[X]"], 4, 1.0, 0.9**3),
        (["[X]", "[X]"], 3, 1.0, 0.81),
        (["-", "-", "-", "-", "-", "[X]", "[X]"], 8, 0.81, 0.9**7),
        (["[X]", "-", "-", "-", "-", "-", "-", "[X]"], 9, 0.9**3, 0.9**8),
        (["[NO DEAL]"], 2, 0.0, 0.0),
    ],
)
def test_both_return_units(
    talk: Talk, messages: list[str], n_messages: int, agent_turn: float, message: float
) -> None:
    turns = talk(*(m.replace("[X]", f"[{S}$50]") for m in messages))
    outcome = GAME.read(kernel(rounds=8), turns)
    assert outcome is not None
    assert len(turns) == n_messages
    played = Conversation("c", "k", "ultimatum", turns, outcome, "")
    assert discounted_return(played, 0.9, "agent_turn") == pytest.approx(agent_turn, abs=1e-12)
    assert discounted_return(played, 0.9, "message") == pytest.approx(message, abs=1e-12)


def test_unilateral_closes_at_the_first_box(talk: Talk) -> None:
    game = Ultimatum(UltimatumOptions(closing="unilateral"))
    outcome = game.read(kernel(), talk("-", f"[{S}$90]"))
    assert outcome is not None
    assert (outcome.reward, outcome.closed_by, outcome.closing_message) == (1.8, "box", 2)
    assert game.bargain(kernel()).j_star(0.9) == {}


def test_enforced_final_turn_ignores_a_new_split(talk: Talk) -> None:
    strict = Ultimatum(UltimatumOptions(enforce_final_turn=True))
    late = talk("-", "-", f"[{S}$50]", f"[{S}$50]")
    assert strict.read(kernel(), late).ending is Ending.TURN_LIMIT  # type: ignore[union-attr]
    assert GAME.read(kernel(), late).ending is Ending.AGREED  # type: ignore[union-attr]
    answered = talk("-", f"[{S}$50]", f"[{S}$50]")
    assert strict.read(kernel(), answered).ending is Ending.AGREED  # type: ignore[union-attr]


def test_a_round_may_be_an_exchange_but_ten_messages_are_the_most() -> None:
    game = Ultimatum(UltimatumOptions(round_unit="exchange"))
    assert [game.limit(kernel(rounds=r)) for r in (4, 6, 8)] == [8, 10, 10]
    assert [GAME.limit(kernel(rounds=r)) for r in (4, 6, 8)] == [4, 6, 8]


def test_splits_are_disjoint_pairs_and_repeat_with_a_replicate() -> None:
    train, held = GAME.scenarios(Split.TRAIN, 100), GAME.scenarios(Split.HELDOUT, 100)
    pairs = [{(k.facts["pool"], k.facts["rounds"]) for k in part} for part in (train, held)]
    assert len(pairs[0]) == 12
    assert pairs[1] == {(100, 6), (1000, 8), (10000, 4)}
    assert not pairs[0] & pairs[1]
    assert len({k.kernel_id for k in (*train, *held)}) == 200
    assert [k.kernel_id for k in held[2:5]] == [
        "ult-p10000-r4-0",
        "ult-p100-r6-1",
        "ult-p1000-r8-1",
    ]
    assert all(k.split is Split.HELDOUT for k in held)
    everything = Ultimatum(UltimatumOptions(holdout="none")).scenarios(Split.TRAIN, 15)
    assert len({(k.facts["pool"], k.facts["rounds"]) for k in everything}) == 15


def test_golden_draw() -> None:
    draw = bargain.private_draw(0, 2, "ult-p1000-r6-0")
    assert 1000 * (0.20 + 0.25 * draw.u) == pytest.approx(275.54, abs=0.005)
    assert draw.beta == 2.0
    partner = GAME.bargain(kernel(1000, 6))
    assert partner.aspirations == (650, 386, 276)
    best = partner.j_star(0.9)
    assert best["agent_turn"] == pytest.approx(1.3032, abs=5e-5)
    assert best["message"] == pytest.approx(0.8952, abs=5e-5)


@pytest.mark.parametrize(
    ("rounds", "alphas", "agent_turn", "message"),
    [(8, (65, 54, 42, 30), 1.134, 0.685), (4, (65, 30), 1.4, 1.0206)],
)
def test_j_star_examples(
    rounds: int, alphas: tuple[int, ...], agent_turn: float, message: float
) -> None:
    curve = tuple(bargain.ceil(a) for a in bargain.aspirations(30, 65, 1.0, rounds // 2))
    assert curve == alphas
    best = SplitBargain(GAME, kernel(rounds=rounds), 100, curve).j_star(0.9)
    assert best["agent_turn"] == pytest.approx(agent_turn, abs=5e-5)
    assert best["message"] == pytest.approx(message, abs=5e-5)


@pytest.mark.parametrize(
    ("text", "dollars"),
    [
        ("I want $60.", 60),
        ("How about $60 for me?", 60),
        ("You get $40", 60),
        ("$70 would be mine", 70),
        ("I keep $60 and you get $40", 60),
        ("I give you $40", 60),
        ("$45 for you, I take the rest", 55),
        ("I'd take $1,000", None),
        ("how about $50", None),
        ("I say $50 you", None),
        ("nothing", None),
        ("You take $33.33", 66.67),
        (r"I want \boxed{AGREED: split=$60}", None),
        ("I get $60k", None),
        ("I get $1,000k", None),
        ("I get $40-50", None),
        ("I get $40–50", None),
        ("I propose a $60/$40 split", None),
        ("I can't accept $40", None),
        ("I won't take $40", None),
        ("You don't get $60", None),
        ("I don't want $40, I want $60", 60),
        ("I can't take less than $60", 60),
        ("I can’t give you more than $40", 60),
        ("I get $60 of the $100", 60),
        ("How much would you want of the $100?", None),
    ],
)
def test_plain_text_offers(text: str, dollars: float | None) -> None:
    said = GAME.bargain(kernel()).plain_offer(text)
    assert said == (None if dollars is None else round(100 * dollars))


def test_prompts_tell_the_rules_and_the_opening_holds_no_number_but_the_pool() -> None:
    for role, number in ((Role.AGENT, "Player 1"), (Role.PARTNER, "Player 2")):
        prompt = GAME.view(kernel(500, 6), role, ()).system
        for fact in (
            f"You are {number}",
            "$500",
            "6 rounds",
            "\\boxed{AGREED: split=$X}",
            "\\boxed{NO DEAL}",
            "X is always Player 1's share",
            "destroys",
        ):
            assert fact in prompt
        assert boxed.boxes(prompt) == ("AGREED: split=$X", "NO DEAL")
    assert "NOT yours" in GAME.view(kernel(), Role.PARTNER, ()).system
    for style in ("full", "compact"):
        opening = make("ultimatum", prompt_style=style).opening(kernel(500, 6))
        assert opening.scripted
        assert [w for w in opening.text if w.isdigit()] == list("500")
    small = make("ultimatum", prompt_style="compact")
    assert small.view(kernel(1000, 6), Role.AGENT, ()).system == "P1 pool=1000 rounds=6"


def test_a_foreign_scenario_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="'x' has no fact 'pool'"):
        GAME.opening(Scenario("x", "ultimatum", Split.TRAIN, {}))
