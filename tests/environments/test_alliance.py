"""Alliance: the edge table, rewards, golden draws, J* and prompts of the specification."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable

import numpy as np
import pytest

from environments.rows import OPEN, REFUSED, read_row
from iterpo.domain import Conversation, Ending, Role, Scenario, Split, Turn, discounted_return
from iterpo.environments import bargain, boxed, make
from iterpo.environments.alliance import AGENDA, Alliance, AllianceOptions, _drawn, _within_reach
from iterpo.errors import DataError

Talk = Callable[..., tuple[Turn, ...]]
GAME = Alliance()
OPPOSED = Alliance(AllianceOptions(preferences="opposed"))
(KERNEL,) = GAME.scenarios(Split.TRAIN, 1)
(HARSH,) = OPPOSED.scenarios(Split.TRAIN, 1)
FIRST = {"A": 1, "B": 2, "C": 3, "D": 1, "E": 4}


def a(**changed: str) -> str:
    return f"[AGREED: {' '.join(f'{k}={v}' for k, v in ({**FIRST, **changed}).items())}]"


A = a()
ALL_FIRST = "[AGREED: A=1 B=1 C=1 D=1 E=1]"
END = "[NO DEAL]"
NAMES = "[AGREED: A=water-based B=2 C=3 D=1 E=4]"

# (row and what it shows, messages from 1 on, terms that differ from a or how it stands)
ROWS: list[tuple[str, list[str], object]] = [
    ("01 one-sided", ["-", A], OPEN),
    ("02 both", [A, A], {}),
    ("03 reverse order", [A, "[AGREED: E=4 D=1 C=3 B=2 A=1]"], {}),
    ("04 letters repeated", [A, "[AGREED: A=A1 B=B2 C=C3 D=D1 E=E4]"], {}),
    ("05 countered", [A, a(E="5"), a(E="5")], {"E": 5}),
    ("06 counted from 1", [a(A="0")] * 2, OPEN),
    ("07a A has two", [a(A="3")] * 2, OPEN),
    ("07b B has three", [a(B="4")] * 2, OPEN),
    ("07c E has five", [a(E="6")] * 2, OPEN),
    ("08a E missing", ["[AGREED: A=1 B=2 C=3 D=1]"] * 2, OPEN),
    ("08b F added", [A.replace("]", " F=1]")] * 2, OPEN),
    ("08c A twice", [A.replace("]", " A=1]")] * 2, OPEN),
    ("09 no =", ["[AGREED: A1 B2 C3 D1 E4]"] * 2, OPEN),
    ("10 other letter", [a(A="B1")] * 2, OPEN),
    ("11 lower case, commas", [A, "[agreed: a=1, b=2, c=c3, d=1, e=4]"], {}),
    ("12a name", [NAMES, NAMES], OPEN),
    ("12b decimals", [a(A="1.5")] * 2, OPEN),
    ("12c sign", [a(A="-1")] * 2, OPEN),
    ("13 refused in the same message", [f"{A} or {END}"], REFUSED),
    ("14 last box offers", [f"{END} or {A}", A], {}),
    ("15 last box counts", [f"{ALL_FIRST} or {A}", ALL_FIRST], OPEN),
    ("16a words", [A, "I agree"], OPEN),
    ("16b ACCEPT is no token", [A, "[ACCEPT]"], OPEN),
    ("17 slot still stands", [A, a(A="2"), "-", A], {}),
    ("18 last word", [A, *["-"] * 8, A], {}),
    ("19 below the threshold", ["-", A, A], {}),
]


@pytest.mark.parametrize(("row", "messages", "expected"), ROWS, ids=[r[0] for r in ROWS])
def test_edge_table(talk: Talk, row: str, messages: list[str], expected: object) -> None:
    turns = talk(*messages)
    outcome = read_row(GAME, KERNEL, turns, expected)
    if outcome is None:
        return
    played = Conversation("c", "k", GAME.name, turns, outcome, "")
    if expected == REFUSED:
        assert discounted_return(played, 0.9, "agent_turn") == 0
        return
    assert isinstance(expected, dict)
    assert outcome.closed_by == "match"
    assert outcome.terms == {**FIRST, **expected}
    reward = 0.94 if expected else 0.82
    assert outcome.reward == pytest.approx(reward, abs=1e-12)
    assert outcome.flags == ("agent_below_batna",)
    tau = {"02": 1, "18": 5}.get(row[:2])
    if tau:
        value = discounted_return(played, 0.9, "agent_turn")
        assert value == pytest.approx(0.9 ** (tau - 1) * reward, abs=1e-12)
        value = discounted_return(played, 0.9, "message")
        assert value == pytest.approx(0.9 ** len(messages) * reward, abs=1e-12)


@pytest.mark.parametrize(
    ("box", "reward", "flags"),
    [
        (A, 0.82, ("agent_below_batna",)),
        (ALL_FIRST, 2.0, ()),
        ("[AGREED: A=2 B=3 C=4 D=4 E=5]", 1.22, ("agent_below_batna", "partner_below_batna")),
    ],
)
def test_reward_examples(talk: Talk, box: str, reward: float, flags: tuple[str, ...]) -> None:
    outcome = GAME.read(KERNEL, talk(box, box))
    assert outcome is not None
    assert outcome.reward == pytest.approx(reward, abs=1e-12)
    assert outcome.flags == flags
    terms = AGENDA.read(box[9:-1])
    assert terms is not None
    assert outcome.reward == GAME.bargain(KERNEL).reward(terms)


def test_thresholds_are_met_by_equality(talk: Talk) -> None:
    facts = {**KERNEL.facts, "agent_threshold": 41, "partner_threshold": 85}
    kernel = dataclasses.replace(KERNEL, facts=facts)
    outcome = GAME.read(kernel, talk(A, A))
    assert outcome is not None
    assert outcome.flags == ()
    facts = {**KERNEL.facts, "agent_threshold": 41, "partner_threshold": 86}
    outcome = GAME.read(dataclasses.replace(KERNEL, facts=facts), talk(A, A))
    assert outcome is not None
    assert outcome.flags == ("partner_below_batna",)


def test_option_enforce_batna(talk: Talk) -> None:
    strict = Alliance(AllianceOptions(enforce_batna=True))
    low, high = (strict.read(KERNEL, talk(box, box)) for box in (A, ALL_FIRST))
    assert low is not None
    assert high is not None
    assert (low.ending, low.reward, low.flags) == (Ending.AGREED, 0.0, ("agent_below_batna",))
    assert high.reward == 2.0
    terms = AGENDA.read(A[9:-1])
    assert terms is not None
    assert strict.bargain(KERNEL).reward(terms) == 0.0
    assert "counts 0" in strict.view(KERNEL, Role.AGENT, ()).system
    assert "counts 0" not in strict.view(KERNEL, Role.PARTNER, ()).system
    assert "counts 0" not in GAME.view(KERNEL, Role.AGENT, ()).system


def test_golden_draw() -> None:
    assert KERNEL.kernel_id == "al-42-0-0"
    assert KERNEL.facts == {
        "difficulty": "hard",
        "agent_scores": [[13, 5], [29, 11, 8], [29, 16, 0, 28], [11, 1, 4, 8], [18, 9, 10, 6, 12]],
        "partner_scores": [
            [17, 5],
            [21, 9, 16],
            [27, 11, 25, 7],
            [22, 18, 11, 3],
            [13, 5, 3, 12, 1],
        ],
        "agent_threshold": 74,
        "partner_threshold": 66,
    }


def test_opposed_reverses_the_partners_scores_only() -> None:
    for shared, opposed in zip(
        GAME.scenarios(Split.TRAIN, 20), OPPOSED.scenarios(Split.TRAIN, 20), strict=True
    ):
        assert opposed.kernel_id == shared.kernel_id
        assert opposed.facts["agent_scores"] == shared.facts["agent_scores"]
        reversed_ = [row[::-1] for row in shared.facts["partner_scores"]]
        assert opposed.facts["partner_scores"] == reversed_


def test_drawn_scores_keep_to_the_generators_bounds() -> None:
    seen = set()
    bands = {"easy": (0.2, 0.35), "medium": (0.35, 0.55), "hard": (0.55, 0.7)}
    for kernel in GAME.scenarios(Split.HELDOUT, 60):
        facts = kernel.facts
        assert json.loads(json.dumps(facts)) == facts
        seen.add(facts["difficulty"])
        low, high = bands[facts["difficulty"]]
        for side in ("agent", "partner"):
            scores = facts[f"{side}_scores"]
            assert [len(row) for row in scores] == [2, 3, 4, 4, 5]
            assert sum(row[0] for row in scores) == 100
            assert all(row[0] >= 5 and max(row[1:]) < row[0] for row in scores)
            least = sum(map(min, scores))
            fraction = (facts[f"{side}_threshold"] - least) / (100 - least)
            assert low - 1 / (100 - least) <= fraction <= high
    assert seen == bands.keys()


def test_thresholds_come_down_together_until_a_deal_meets_both() -> None:
    flat = [[0] * size for size in AGENDA.shape]
    first, second = [[9, 2], *flat[1:]], [[1, 7], *flat[1:]]
    # A1 leaves the second side 4 short, A2 the first side 7.
    assert _within_reach((first, second), [9, 5]) == (5, 1)
    assert _within_reach((first, second), [9, 1]) == (9, 1)
    assert _within_reach((first, second), [8, 0]) == (8, 0)


@pytest.mark.parametrize(("i", "down"), [(0, 0), (248, 1), (261, 2), (561, 4)])
def test_opposed_thresholds_may_be_out_of_reach_at_first(i: int, down: int) -> None:
    """About one hard scenario in fifty."""
    shared, facts = (_drawn(np.random.default_rng([42, 6, 0, i]), o) for o in (False, True))
    for who in Role:
        assert shared[f"{who}_threshold"] - facts[f"{who}_threshold"] == down
    sides = [(facts[f"{who}_scores"], facts[f"{who}_threshold"]) for who in Role]
    spare = max(
        min(sum(r[o] for r, o in zip(s, deal, strict=True)) - t for s, t in sides)
        for deal in itertools.product(*map(range, AGENDA.shape))
    )
    assert spare == 0 if down else spare > 0


def test_splits_share_no_scenario_and_a_kernel_does_not_depend_on_how_many_are_asked_for() -> None:
    train, held = GAME.scenarios(Split.TRAIN, 30), GAME.scenarios(Split.HELDOUT, 30)
    assert len({str(k.facts) for k in (*train, *held)}) == 60
    assert [k.kernel_id for k in held[:2]] == ["al-42-1-0", "al-42-1-1"]
    assert GAME.scenarios(Split.TRAIN, 5) == train[:5]
    assert GAME.scenarios(Split.TRAIN, 1, data_seed=43)[0].facts != KERNEL.facts


def test_golden_bargain_and_j_star() -> None:
    assert bargain.private_draw(0, 6, KERNEL.kernel_id).beta == 1.0
    partner = GAME.bargain(KERNEL)
    assert partner.aspirations == (90, 84, 78, 72, 66)
    best = partner.j_star(0.9)
    assert best["agent_turn"] == pytest.approx(2.0, abs=1e-12)
    assert best["message"] == pytest.approx(1.458, abs=1e-12)
    opposed = OPPOSED.bargain(HARSH)
    assert opposed.aspirations == (90, 84, 78, 72, 66)
    reach = [opposed.reach(alpha) for alpha in opposed.aspirations[1:]]
    assert reach == pytest.approx([1.64, 1.8, 1.8, 1.92], abs=1e-12)
    best = opposed.j_star(0.9)
    assert best["agent_turn"] == pytest.approx(1.64, abs=1e-12)
    assert best["message"] == pytest.approx(1.1956, abs=5e-5)


def test_with_shared_preferences_every_kernel_is_worth_the_most_at_once() -> None:
    for kernel in GAME.scenarios(Split.TRAIN, 50):
        best = GAME.bargain(kernel).j_star(0.9)
        assert (best["agent_turn"], best["message"]) == pytest.approx((2.0, 1.458), abs=1e-12)


def test_reach_looks_at_all_480_deals() -> None:
    deals = list(itertools.product(*map(range, AGENDA.shape)))
    assert len(deals) == 480
    for kernel in OPPOSED.scenarios(Split.TRAIN, 10):
        partner = OPPOSED.bargain(kernel)
        for aspiration in partner.aspirations:
            slow = max(partner.reward(d) for d in deals if partner.worth(d) >= aspiration)
            assert partner.reach(aspiration) == slow


def test_aspirations_fall_from_90_or_the_threshold_to_the_threshold() -> None:
    for threshold, first in ((66, 90), (95, 95)):
        facts = {**KERNEL.facts, "partner_threshold": threshold}
        alphas = GAME.bargain(dataclasses.replace(KERNEL, facts=facts)).aspirations
        assert (alphas[0], alphas[-1]) == (first, threshold)
        assert list(alphas) == sorted(alphas, reverse=True)


def test_counters_change_as_few_issues_as_possible() -> None:
    partner = OPPOSED.bargain(HARSH)
    assert partner.counter(72, None, None) == (1, 2, 3, 3, 4)
    asked = (0, 0, 0, 0, 0)
    for aspiration in partner.aspirations:
        got = partner.counter(aspiration, asked, None)
        changed = sum(x != y for x, y in zip(got, asked, strict=True))
        deals = itertools.product(*map(range, AGENDA.shape))
        fewest = min(
            sum(x != y for x, y in zip(d, asked, strict=True))
            for d in deals
            if partner.worth(d) >= aspiration
        )
        assert changed == fewest
    assert partner.counter(66, (1, 2, 3, 3, 4), None) == (1, 2, 3, 3, 4)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("A1 B2 C3 D1 E4", (0, 1, 2, 0, 3)),
        ("A=1, B=B2, C: 3, d1, e=4", (0, 1, 2, 0, 3)),
        ("B2", (1, 1, 3, 3, 4)),
        ("B=2 and E1?", (1, 1, 3, 3, 0)),
        ("A3", None),
        ("B1 or B2?", None),
        ("Not B2", None),
        ("No B2", None),
        ("I refuse E5", None),
        ("B2 is too much", None),
        ("Either A1 or B2", None),
        ("If you give me A1, I'll give you E5", (0, 2, 3, 3, 4)),
        ("I like restoration", None),
    ],
)
def test_plain_text_offers(text: str, terms: tuple[int, ...] | None) -> None:
    partner = GAME.bargain(KERNEL)
    turns = (GAME.opening(KERNEL), Turn(Role.PARTNER, partner.box((1, 2, 3, 3, 4), Role.PARTNER)))
    assert partner.plain_offer(text, turns) == terms
    whole = terms is not None and "d1" in text.lower()
    assert partner.plain_offer(text) == (terms if whole else None)


def test_the_partners_words_are_true_and_name_no_number() -> None:
    def preference(style: str, kernel: Scenario) -> str:
        game = make("alliance", prompt_style=style)
        return str(game.bargain(kernel).preference)  # type: ignore[attr-defined]

    assert preference("full", HARSH) == (
        "What matters most to me is Employment, then Funding, then Environment, then "
        "Infrastructure, then Compensation; my first choices there are full union and no "
        "federal loan"
    )
    assert preference("compact", HARSH) == "C>D>B>A>E full union, no federal loan"
    tied = dataclasses.replace(
        KERNEL,
        facts={
            **KERNEL.facts,
            "partner_scores": [[25, 0], [25, 1, 1], [20, 0, 0, 0], [20, 1, 1, 1], [10] + [0] * 4],
        },
    )
    assert preference("compact", tied).startswith("A=B>C=D>E ")
    assert "Infrastructure and Environment, then Employment and Funding" in preference("full", tied)
    even = [[20, 0], [20, 1, 1], [20, 0, 0, 0], [20, 1, 1, 1], [20] + [0] * 4]
    same = dataclasses.replace(KERNEL, facts={**KERNEL.facts, "partner_scores": even})
    assert preference("full", same).startswith("All issues weigh the same for me")
    for kernel in OPPOSED.scenarios(Split.TRAIN, 30):
        for style in ("full", "compact"):
            words = preference(style, kernel)
            assert not any(c.isdigit() for c in words)
            assert AGENDA.said(words) is None


def test_unilateral_closes_at_the_first_box(talk: Talk) -> None:
    game = Alliance(AllianceOptions(closing="unilateral"))
    outcome = game.read(KERNEL, talk("-", ALL_FIRST))
    assert outcome is not None
    assert (outcome.reward, outcome.closed_by, outcome.closing_message) == (2.0, "box", 2)
    assert game.bargain(KERNEL).j_star(0.9) == {}
    assert "The first valid box" in game.view(KERNEL, Role.AGENT, ()).system


def test_prompts_tell_every_fact_of_their_side() -> None:
    options = {
        "A": ("Infrastructure", "water", "land"),
        "B": ("Environment", "minimal", "moderate", "full restoration"),
        "C": ("Employment", "unlimited", "locals", "partial union", "full union"),
        "D": ("Funding", "full federal", "partial", "minimal", "no federal"),
        "E": ("Compensation", "maximum", "high", "moderate", "low", "no compensation"),
    }
    for role in Role:
        prompt = GAME.view(KERNEL, role, ()).system
        lines = {line[2]: line for line in prompt.splitlines() if line.startswith("- ")}
        rows = KERNEL.facts[f"{role.value}_scores"]
        for (letter, (name, *labels)), row in zip(options.items(), rows, strict=True):
            assert name in lines[letter]
            told = lines[letter].split("; ")
            for n, (part, label, points) in enumerate(zip(told, labels, row, strict=True), 1):
                assert f"{n}. " in part
                assert label in part
                assert part.endswith(f"({points})")
        assert f"threshold is {KERNEL.facts[f'{role.value}_threshold']} points" in prompt
        assert "both sides have boxed the same options" in prompt
        assert boxed.boxes(prompt) == ("AGREED: A=a B=b C=c D=d E=e", "NO DEAL")
        assert AGENDA.read(boxed.boxes(prompt)[0][8:]) is None
    small = make("alliance", prompt_style="compact")
    assert small.view(KERNEL, Role.AGENT, ()).system == (
        "A 13,5 B 29,11,8 C 29,16,0,28 D 11,1,4,8 E 18,9,10,6,12 min 74"
    )
    for game in (GAME, small):
        opening = game.opening(KERNEL)
        assert opening.scripted
        assert not any(c.isdigit() for c in opening.text)
        assert AGENDA.said(opening.text) is None
        assert game.view(KERNEL, Role.AGENT, (opening,)).reminder is None


def test_private_points_never_reach_the_other_side() -> None:
    other = GAME.scenarios(Split.TRAIN, 2)[1]
    for role in Role:
        theirs = (f"{role.other.value}_scores", f"{role.other.value}_threshold")
        facts = {**KERNEL.facts, **{name: other.facts[name] for name in theirs}}
        changed = Scenario(KERNEL.kernel_id, GAME.name, Split.TRAIN, facts)
        for style in ("full", "compact"):
            game = make("alliance", prompt_style=style)
            assert game.view(KERNEL, role, ()) == game.view(changed, role, ())
            assert game.view(KERNEL, role.other, ()) != game.view(changed, role.other, ())
            assert game.opening(KERNEL) == game.opening(changed)


def test_a_foreign_scenario_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="'x' has no fact 'agent_scores'; alliance needs"):
        GAME.view(Scenario("x", GAME.name, Split.TRAIN, {}), Role.AGENT, ())


def test_the_limit_is_ten_messages_after_the_opening() -> None:
    assert GAME.limit(KERNEL) == 10
