"""CaSiNo: the edge table, rewards, J*, prompts, splits, and shares claimed in words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.rows import LIMIT, OPEN, REFUSED, division, read_row
from iterpo.domain import Role, Scenario, Split, Turn, action_indices
from iterpo.environments import bargain, make
from iterpo.environments.casino import Casino, CasinoOptions
from iterpo.environments.claims import said_share
from iterpo.environments.sources import Camper, Campsite
from iterpo.errors import DataError

Talk = Callable[..., tuple[Turn, ...]]
GAME = Casino()
FOOD_FIRST, FIRE_FIRST = ("Food", "Water", "Firewood"), ("Firewood", "Water", "Food")
WHY = (" our children eat a lot. ", "it is “hot” there..", "there is wood around .")


def site(
    agent: tuple[str, ...] = FOOD_FIRST, partner: tuple[str, ...] = FIRE_FIRST, number: int = 7
) -> Campsite:
    return Campsite(number, (Camper(agent, WHY), Camper(partner, ("a b", "c d", "e f"))))


KERNEL = GAME.scenario(site(), Split.TRAIN)


def box(mine: str, theirs: str) -> str:
    return division(FOOD_FIRST, mine, theirs)


Q, MIRROR = box("3,2,0", "0,1,3"), box("0,1,3", "3,2,0")
YES, NO, END = "[ACCEPT]", "[REJECT]", "[NO DEAL]"
Share = tuple[int, int, int]

# (row and what it shows, messages from 1 on, the agent's share or how it stands, closed by)
ROWS: list[tuple[str, list[str], Share | str, str]] = [
    ("01 propose, accept", ["-", Q, YES], (3, 2, 0), "accept"),
    ("02 the agent accepts", [Q, YES], (0, 1, 3), "accept"),
    ("03 nothing stands", [YES], OPEN, ""),
    ("04a eight packages", ["-", box("3,2,0", "0,1,2"), YES], OPEN, ""),
    ("04b ten packages", ["-", box("3,2,1", "0,1,3"), YES], OPEN, ""),
    ("04c nine, but not three of each", ["-", box("3,2,0", "1,0,3"), YES], OPEN, ""),
    ("05 negative", ["-", box("4,2,0", "-1,1,3"), YES], OPEN, ""),
    ("06 verbatim echo", ["-", Q, Q], (3, 2, 0), "echo_verbatim"),
    ("07 mirror echo", ["-", Q, MIRROR], (3, 2, 0), "echo_mirror"),
    ("08 own proposal echoed", ["-", Q, "-", Q], OPEN, ""),
    ("09 words close nothing", ["-", Q, "Deal, thanks!"], OPEN, ""),
    ("10 rejected", ["-", Q, NO, "-", YES], OPEN, ""),
    ("11 superseded by the other", ["-", Q, box("1,1,3", "2,2,0"), YES], (2, 2, 0), "accept"),
    (
        "12 lower case",
        [
            "-",
            "[agreed: mine: food=3 water=2 firewood=0; theirs: food=0 water=1 firewood=3]",
            "[accept]",
        ],
        (3, 2, 0),
        "accept",
    ),
    (
        "13 other order",
        ["-", "[AGREED: MINE: Firewood=0 Food=3 Water=2; THEIRS: Water=1 Firewood=3 Food=0]", YES],
        (3, 2, 0),
        "accept",
    ),
    (
        "14a no Firewood",
        ["-", "[AGREED: MINE: Food=3 Water=3; THEIRS: Food=0 Water=0]", YES],
        OPEN,
        "",
    ),
    ("14b called Wood", ["-", Q.replace("Firewood", "Wood"), YES], OPEN, ""),
    ("14c twice", ["-", Q.replace("Water", "Food"), YES], OPEN, ""),
    ("15 no deal", ["-", END], REFUSED, ""),
    ("16 accepted, then no deal", ["-", Q, f"{YES} {END}"], REFUSED, ""),
    ("17a everything", ["-", box("3,3,3", "0,0,0"), YES], (3, 3, 3), "accept"),
    ("17b nothing", ["-", box("0,0,0", "3,3,3"), YES], (0, 0, 0), "accept"),
    ("18 nothing stands at the end", ["-"] * 9 + [YES], LIMIT, ""),
    ("19 unclosed", ["-", Q, "\\boxed{ACCEPT"], OPEN, ""),
    ("20a wrapped", ["-", Q, "\\boxed{\\text{ACCEPT}}"], (3, 2, 0), "accept"),
    ("20b counts in braces", ["-", Q.replace("Food=3", "Food={3}"), YES], (3, 2, 0), "accept"),
    ("21 still stands", ["-", Q, "-", "-", YES], (3, 2, 0), "accept"),
]
TAUS = {"11": 2, "21": 2}
REWARDS = {"01": 1.2778, "02": 0.7222, "11": 1.0, "17a": 2.0, "17b": 0.0, "21": 1.2778}


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
    assert dict(outcome.terms) == dict(zip(FOOD_FIRST, expected, strict=True))
    high, medium, low = expected
    assert outcome.reward == pytest.approx((5 * high + 4 * medium + 3 * low) / 18, abs=1e-12)
    name = row.split()[0]
    if name in REWARDS:
        assert outcome.reward == pytest.approx(REWARDS[name], abs=5e-5)
    if name in TAUS:
        assert len(action_indices(turns)) == TAUS[name]


@pytest.mark.parametrize(
    ("order", "share", "reward"),
    [
        (FOOD_FIRST, "3,2,0", 23 / 18),
        (FOOD_FIRST, "0,1,3", 13 / 18),
        (FOOD_FIRST, "2,2,0", 1.0),
        (FOOD_FIRST, "3,3,3", 2.0),
        (("Water", "Firewood", "Food"), "3,2,0", 19 / 18),
        (("Water", "Firewood", "Food"), "0,3,1", 19 / 18),
    ],
)
def test_rewards_follow_the_agents_order(
    talk: Talk, order: tuple[str, ...], share: str, reward: float
) -> None:
    rest = ",".join(str(3 - int(n)) for n in share.split(","))
    for partner in (FOOD_FIRST, FIRE_FIRST):
        kernel = GAME.scenario(site(order, partner), Split.TRAIN)
        outcome = GAME.read(kernel, talk(box(rest, share), YES))
        assert outcome is not None
        assert outcome.reward == pytest.approx(reward, abs=1e-12)


@pytest.mark.parametrize(
    ("options", "copy", "closes"),
    [
        ({"echo": "verbatim"}, Q, True),
        ({"echo": "verbatim"}, MIRROR, False),
        ({"echo": "mirror"}, Q, False),
        ({"echo": "none"}, MIRROR, False),
        ({}, f"{NO} {Q}", False),
        ({"strict_order": True}, YES, True),
    ],
)
def test_options(talk: Talk, options: dict[str, object], copy: str, closes: bool) -> None:
    game = make("casino", **options)
    assert (game.read(KERNEL, talk("-", Q, copy)) is not None) is closes
    (other_order,) = (row[1] for row in ROWS if row[0].startswith("13"))
    strict = options.get("strict_order", False)
    assert (game.read(KERNEL, talk(*other_order)) is None) is strict


@pytest.mark.parametrize(
    ("partner", "reach", "agent_turn", "message"),
    [
        (FIRE_FIRST, [0.8333, 1.0556, 1.2778, 1.5], 1.0935, 0.6233),
        (FOOD_FIRST, [0.6667, 0.8333, 1.0, 1.2222], 0.8910, 0.4921),
    ],
    ids=["opposite orders", "same orders"],
)
def test_j_star_examples(
    partner: tuple[str, ...], reach: list[float], agent_turn: float, message: float
) -> None:
    kernel = GAME.scenario(site(FOOD_FIRST, partner), Split.TRAIN)
    alphas = tuple(bargain.ceil(a) for a in bargain.aspirations(14, 27, 1.0, 5))
    assert alphas == (27, 24, 21, 18, 14)
    values = [GAME.bargain(kernel).reach(a) for a in alphas]
    assert values[1:] == pytest.approx(reach, abs=5e-5)
    best = bargain.j_star(0.9, values, range(2, 6))
    assert best["agent_turn"] == pytest.approx(agent_turn, abs=5e-5)
    assert best["message"] == pytest.approx(message, abs=5e-5)


def test_golden_draw() -> None:
    draw = bargain.private_draw(0, 4, "casino-938")
    assert draw.u == pytest.approx(0.9887, abs=5e-5)
    assert draw.beta == 1.0
    partner = GAME.bargain(GAME.scenario(site(number=938), Split.HELDOUT))
    assert partner.aspirations == (27, 25, 22, 19, 16)


def test_the_partner_tells_its_true_ranking() -> None:
    assert GAME.bargain(KERNEL).preference == (
        "I care most about firewood, then water, and least about food"
    )
    small = Casino(CasinoOptions(prompt_style="compact"))
    assert small.bargain(KERNEL).preference == "Firewood>Water>Food"


def test_priorities_and_reasons_never_reach_the_other_side() -> None:
    other = Camper(("Water", "Food", "Firewood"), ("x y", "z x", "y z"))
    changed = GAME.scenario(Campsite(7, (other, site().campers[1])), Split.TRAIN)
    for style in ("full", "compact"):
        game = make("casino", prompt_style=style)
        turns = (game.opening(KERNEL),)
        assert game.opening(KERNEL) == game.opening(changed)
        theirs = game.view(KERNEL, Role.PARTNER, turns)
        assert theirs == game.view(changed, Role.PARTNER, turns)
        assert game.view(KERNEL, Role.AGENT, turns) != game.view(changed, Role.AGENT, turns)


def test_the_reminder_is_in_the_rendered_prompt_only() -> None:
    turns = (GAME.opening(KERNEL), Turn(Role.PARTNER, "Hi!"))
    view = GAME.view(KERNEL, Role.AGENT, turns)
    assert view.turns == turns
    assert view.messages()[-1].content == (
        "[PRIVATE NOTE | priorities: High Food=5, Medium Water=4, Low Firewood=3 | "
        "pool: Food=3 Water=3 Firewood=3 | maximise the points of your share]\nHi!"
    )
    partner = GAME.view(KERNEL, Role.PARTNER, turns[:1]).messages()[-1].content
    assert partner.startswith("[PRIVATE NOTE | priorities: High Firewood=5, Medium Water=4, Low F")
    assert make("casino", reminder=False).view(KERNEL, Role.AGENT, turns).reminder is None


def test_prompts_tell_the_rules_the_points_and_the_reasons() -> None:
    prompt = GAME.view(KERNEL, Role.AGENT, ()).system
    for fact in (
        "3 of food, 3 of water, 3 of firewood",
        "High: Food, 5 points a package (our children eat a lot)",
        "Medium: Water, 4 points a package (it is “hot” there.)",
        "Low: Firewood, 3 points a package (there is wood around)",
        "MINE: Food=n Water=n Firewood=n; THEIRS: Food=n Water=n Firewood=n",
        "9 packages in all (so every n is 0, 1, 2 or 3)",
        "\\boxed{ACCEPT}",
        "\\boxed{REJECT}",
        "\\boxed{NO DEAL}",
        "closes nothing",
        "replaces",
        "go on negotiating",
    ):
        assert fact in prompt
    assert KERNEL.facts["agent_reasons"] == list(WHY), "stored verbatim"
    assert "(a b)" in GAME.view(KERNEL, Role.PARTNER, ()).system
    opening = GAME.opening(KERNEL)
    assert opening.scripted
    assert not any(c.isdigit() for c in opening.text)


def test_the_compact_style_is_a_few_tokens() -> None:
    small = make("casino", prompt_style="compact")
    turns = (small.opening(KERNEL),)
    assert turns[0].text == "Food 3 Water 3 Firewood 3. You like?"
    view = small.view(KERNEL, Role.AGENT, turns)
    assert view.system == "Food 3x5 Water 3x4 Firewood 3x3"
    partner = small.view(KERNEL, Role.PARTNER, turns)
    assert partner.reminder == "[Food 3x3 Water 3x4 Firewood 3x5]"


# (said, the speaker's food, water and firewood; None where it is unclear)
CLAIMS: list[tuple[str, Share | None]] = [
    ("I take two food and the water", (2, 3, 0)),
    ("I'll take 3 food and 2 water", (3, 2, 0)),
    ("I’ll take 3 Food, 2 Water.", (3, 2, 0)),
    ("you can have all the firewood", (3, 3, 0)),
    ("I want two packages of water", (0, 2, 0)),
    ("I'd like to keep all 3 packages of food, 2 of the water and no firewood.", (3, 2, 0)),
    ("I'll take 2 food packages and 1 water package.", (2, 1, 0)),
    ("I keep the three food and one bottle of water", (3, 1, 0)),
    ("I take all of the food, you get all of the water and all of the firewood", (3, 0, 0)),
    ("I take 2 food, 1 water, 3 firewood; you take 1 food, 2 water, 0 firewood", (2, 1, 3)),
    ("I take 1 wood and 3 waters", (0, 3, 1)),
    ("You can have the wood, I keep the rest", (3, 3, 0)),
    ("I take 3 food and you get everything else", (3, 0, 0)),
    ("I take 3 food and 2 water, the rest is yours!", (3, 2, 0)),
    ("I like food most. I'll take 3 food and 1 water as my children are hungry", (3, 1, 0)),
    ("Would you take 3 water?", (3, 0, 3)),
    ("I want food", None),
    ("I want the food and water", None),
    ("I want half the water", None),
    ("I want some of the water", None),
    ("I take both water", None),
    ("I take 2-3 water", None),
    ("I take 2 to 3 water", None),
    ("I take 2 or 3 water", None),
    ("I take 2 food or 3 water", None),
    ("I take 2/3 of the food", None),
    ("I take 2.5 food", None),
    ("I take at least 2 food", None),
    ("I take 2 food but not the water", None),
    ("I want 4 food", None),
    ("I take all 2 food", None),
    ("I take 2 food and 2 food", None),
    ("I take 2 food. 2 water too.", None),
    ("I take 3 food and the rest of the water", None),
    ("I take 3 food and the rest", None),
    ("I take the rest", None),
    ("I take everything", None),
    ("I take 1 of each", None),
    ("You get none of the food", None),
    ("I don't want the water", None),
    ("I can't let you have the water", None),
    ("Do you have to take 3 food?", None),
    ("I doubt you take the water", None),
    ("I want you to have all the food", None),
    ("Do you want 3 food?", None),
    ("If I take 2 food, would you take 3 water?", None),
    ("I keep 2 food, you get 2 food, the water and the firewood", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "share"), CLAIMS, ids=[text for text, _ in CLAIMS])
def test_plain_text_claims(text: str, share: Share | None) -> None:
    assert GAME.bargain(KERNEL).plain_offer(text) == share


def test_what_is_boxed_is_no_claim() -> None:
    assert GAME.bargain(KERNEL).plain_offer("\\boxed{I take 2 food}") is None


WORDS = ["I take", "you get", "2", "all", "the", "food", "water", "wood", "and", "of", ".", "rest"]


@given(st.text(), st.lists(st.sampled_from(WORDS)))
def test_claims_never_raise_and_never_exceed_the_pool(text: str, words: list[str]) -> None:
    for said in (text, " ".join(words)):
        share = said_share(said, ("food", "water", "firewood/wood"), (3, 3, 3), mass=True)
        assert share is None or all(0 <= n <= 3 for n in share)


def test_an_environment_is_a_pure_function_of_its_facts(talk: Talk) -> None:
    other = Scenario("another name", "casino", Split.HELDOUT, dict(KERNEL.facts))
    turns = talk("-", Q, YES)
    assert GAME.read(KERNEL, turns) == GAME.read(other, turns)


def test_a_foreign_scenario_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="'x' has no fact 'agent_order'; casino needs"):
        GAME.view(Scenario("x", "casino", Split.TRAIN, {}), Role.AGENT, ())
