"""Job Interview: the edge table, rewards, golden draws, J* and prompts of the specification."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import pytest

from environments.rows import OPEN, REFUSED, read_row
from iterpo.domain import Conversation, Ending, Role, Scenario, Split, Turn, discounted_return
from iterpo.environments import bargain, boxed, issues, make
from iterpo.environments.job_interview import AGENDA, JobInterview, JobInterviewOptions
from iterpo.errors import ConfigError, DataError

Talk = Callable[..., tuple[Turn, ...]]
GAME = JobInterview()
(KERNEL,) = GAME.scenarios(Split.TRAIN, 1)
DEAL = {
    "Salary": "45",
    "Holiday": "4",
    "Workplace": "Seoul",
    "Company": "Google",
    "Position": "Designer",
}
J_REWARD = 0.3558


def j(**changed: str) -> str:
    return f"[AGREED: {' '.join(f'{k}={v}' for k, v in (DEAL | changed).items())}]"


J = j()
MIXED = (
    "[AGREED: Position=Designer, Company=Google; Salary=45 ,Holiday=4, Workplace=Seoul]",
    "[agreed: workplace=SEOUL position=designer company=google holiday = 4 salary = 45]",
)
MISSING = "[AGREED: Salary=45 Holiday=4 Workplace=Seoul Company=Google]"
TWICE = J.replace("Holiday", "Salary=45 Holiday")
END = "[NO DEAL]"

# (row and what it shows, messages from 1 on, terms that differ from j or how it stands)
ROWS: list[tuple[str, list[str], object]] = [
    ("01 one-sided", ["-", J], OPEN),
    ("02 both", ["-", J, J], {}),
    ("03 countered", [J, j(Position="Sales"), j(Position="Sales")], {"Position": "Sales"}),
    ("04 other company", [J, j(Company="Apple")], OPEN),
    ("05a salary too low", [j(Salary="19"), j(Salary="19")], OPEN),
    ("05b salary too high", [j(Salary="52"), j(Salary="52")], OPEN),
    ("06a upper ends", [j(Salary="51", Holiday="7")] * 2, {"Salary": 51, "Holiday": 7}),
    ("06b lower ends", [j(Salary="20", Holiday="2")] * 2, {"Salary": 20, "Holiday": 2}),
    ("07a holiday too long", [j(Holiday="8")] * 2, OPEN),
    ("07b holiday too short", [j(Holiday="1")] * 2, OPEN),
    ("08a decimals", [j(Salary="45.5")] * 2, OPEN),
    ("08b range", [j(Salary="40-45")] * 2, OPEN),
    ("08c dollars in full", [j(Salary="45000")] * 2, OPEN),
    ("09 $ and k", [j(Salary="$45"), j(Salary="45k")], {}),
    ("10 unknown company", [j(Company="Microsoft")] * 2, OPEN),
    ("11 case", [j(Workplace="tokyo"), j(Workplace="Tokyo")], {"Workplace": "Tokyo"}),
    ("12a other order, commas", [J, MIXED[0]], {}),
    ("12b other order, case, blanks", [J, MIXED[1]], {}),
    ("13 position missing", [MISSING, MISSING], OPEN),
    ("14a WeeklyHoliday", [J.replace("Holiday", "WeeklyHoliday"), J], {}),
    ("14b Weekly Holiday", [J, J.replace("Holiday", "weekly holiday")], {}),
    ("15 position with company", [j(Position="Designer at Google")] * 2, OPEN),
    ("16 words", [J, "Great, I agree"], OPEN),
    ("17 haggling", ["-", J, j(Salary="50"), J, J], {}),
    ("18 slot still stands", [j(Salary="50"), J, "-", j(Salary="50")], {"Salary": 50}),
    ("19 an invalid box changes nothing", [J, j(Salary="60"), "-", J], {}),
    ("20 refused in the same message", [f"{J} or {END}"], REFUSED),
    ("21 last box", ["-", f"{j(Salary='30')} or {J}", J], {}),
    ("22 ACCEPT is no token", [J, "[ACCEPT]"], OPEN),
    ("23 unclosed", [J, "\\boxed{" + J[1:-1]], OPEN),
    ("24 salary twice", [TWICE, TWICE], OPEN),
]


@pytest.mark.parametrize(("row", "messages", "expected"), ROWS, ids=[r[0] for r in ROWS])
def test_edge_table(talk: Talk, row: str, messages: list[str], expected: object) -> None:
    turns = talk(*messages)
    outcome = read_row(GAME, KERNEL, turns, expected)
    if outcome is None or expected == REFUSED:
        return
    assert isinstance(expected, dict)
    assert outcome.closed_by == "match"
    assert outcome.terms == DEAL | {"Salary": 45, "Holiday": 4} | expected
    if not expected:
        assert outcome.reward == pytest.approx(J_REWARD, abs=5e-5)
    if row.startswith("17"):
        played = Conversation("c", "k", GAME.name, turns, outcome, "")
        assert discounted_return(played, 0.9, "agent_turn") == pytest.approx(
            0.9 * J_REWARD, abs=5e-5
        )


def test_row_4_the_position_is_worth_what_the_company_makes_of_it(talk: Talk) -> None:
    values = []
    for company in ("Google", "Apple"):
        outcome = GAME.read(KERNEL, talk(j(Company=company), j(Company=company)))
        assert outcome is not None
        assert outcome.reward is not None
        values.append(outcome.reward)
    weights, values_of = KERNEL.facts["agent"]["weights"], KERNEL.facts["agent"]["company"]
    assert values[1] - values[0] == pytest.approx(
        weights[3] * (values_of[2] - values_of[0]) + weights[4] * (0.279 - 0), abs=5e-5
    )


def test_golden_draw() -> None:
    assert KERNEL.kernel_id == "ji-42-0-0"
    recruiter, worker = KERNEL.facts["agent"], KERNEL.facts["partner"]
    near = 5e-5
    assert recruiter["weights"] == pytest.approx([0.1413, 0.3314, 0.1135, 0.1405, 0.2733], abs=near)
    assert recruiter["workplace"] == pytest.approx([0, 0.36, 1, 0.1354], abs=near)
    assert recruiter["company"] == pytest.approx([0.6318, 0.2922, 1, 0], abs=near)
    for row, expected in zip(
        recruiter["position"],
        [
            [1, 0.6167, 0, 0.0088],
            [0.6572, 1, 0, 0.8102],
            [1, 0, 0.279, 0.5769],
            [0, 0.0701, 0.0478, 1],
        ],
        strict=True,
    ):
        assert row == pytest.approx(expected, abs=near)
    assert worker["weights"] == pytest.approx([0.1877, 0.1866, 0.2514, 0.1553, 0.2190], abs=near)
    assert worker["workplace"] == pytest.approx([1, 0.7404, 0.8748, 0], abs=near)
    assert worker["company"] == pytest.approx([0.1331, 0.3493, 0, 1], abs=near)


def test_drawn_values_keep_to_the_generators_bounds() -> None:
    for kernel in GAME.scenarios(Split.HELDOUT, 50):
        for side in kernel.facts.values():
            assert sum(side["weights"]) == pytest.approx(1, abs=1e-12)
            assert all(0.1 <= w <= 0.6 for w in side["weights"])
            for values in (side["workplace"], side["company"], *side["position"]):
                assert (min(values), max(values), len(values)) == (0, 1, 4)
        assert json.loads(json.dumps(kernel.facts)) == kernel.facts


def test_splits_share_no_scenario_and_a_kernel_does_not_depend_on_how_many_are_asked_for() -> None:
    train, held = GAME.scenarios(Split.TRAIN, 30), GAME.scenarios(Split.HELDOUT, 30)
    assert len({str(k.facts) for k in (*train, *held)}) == 60
    assert [k.kernel_id for k in held[:2]] == ["ji-42-1-0", "ji-42-1-1"]
    assert GAME.scenarios(Split.TRAIN, 5) == train[:5]
    assert GAME.scenarios(Split.TRAIN, 1, data_seed=43)[0].facts != KERNEL.facts


@pytest.mark.parametrize(
    ("deal", "recruiter", "worker"),
    [
        (("45", "4", "Seoul", "Google", "Designer"), 0.3558, 0.6518),
        (("30", "4", "Seoul", "Apple", "Engineer"), 0.7492, None),
        (("20", "2", "Beijing", "Apple", "Engineer"), 1.0, None),
    ],
)
def test_reward_examples(
    talk: Talk, deal: tuple[str, ...], recruiter: float, worker: float | None
) -> None:
    box = j(**dict(zip(DEAL, deal, strict=True)))
    outcome = GAME.read(KERNEL, talk(box, box))
    assert outcome is not None
    assert outcome.reward == pytest.approx(recruiter, abs=5e-5)
    bargaining = GAME.bargain(KERNEL)
    terms = AGENDA.read(box[9:-1])
    assert terms is not None
    # Scored as the bound counts, to the last bit.
    assert outcome.reward == bargaining.reward(terms)
    if worker is not None:
        assert bargaining.worth(terms) == pytest.approx(worker, abs=5e-5)


@pytest.mark.parametrize(
    ("messages", "n_messages", "agent_turn", "message"),
    [
        (["-", J, J], 4, 1.0, 0.9**3),
        ([J, J], 3, 1.0, 0.81),
        ([J, *["-"] * 8, J], 11, 0.9**4, 0.9**10),
        ([END], 2, 0.0, 0.0),
    ],
)
def test_both_return_units(
    talk: Talk, messages: list[str], n_messages: int, agent_turn: float, message: float
) -> None:
    turns = talk(*messages)
    outcome = GAME.read(KERNEL, turns)
    assert outcome is not None
    assert outcome.reward is not None
    assert len(turns) == n_messages
    played = Conversation("c", "k", GAME.name, turns, outcome, "")
    for unit, power in (("agent_turn", agent_turn), ("message", message)):
        value = discounted_return(played, 0.9, unit)  # type: ignore[arg-type]
        assert value == pytest.approx(power * outcome.reward, abs=1e-12)


def test_golden_bargain_and_j_star() -> None:
    draw = bargain.private_draw(0, 5, KERNEL.kernel_id)
    assert draw.u == pytest.approx(0.0392, abs=5e-5)
    assert draw.beta == 0.5
    partner = GAME.bargain(KERNEL)
    assert partner.aspirations == pytest.approx([0.9, 0.8661, 0.7645, 0.5950, 0.3578], abs=5e-5)
    assert partner.aspirations[4] == pytest.approx(0.35 + 0.2 * draw.u, abs=1e-11)
    reach = [partner.reach(a) for a in partner.aspirations[1:]]
    assert reach == pytest.approx([0.4279, 0.5981, 0.8815, 1.0], abs=5e-5)
    best = partner.j_star(0.9)
    assert best["agent_turn"] == pytest.approx(0.729, abs=5e-5)
    assert best["message"] == pytest.approx(0.4216, abs=5e-5)


def test_reach_looks_at_all_12288_deals() -> None:
    partner = GAME.bargain(KERNEL)
    deals = list(itertools.product(*map(range, AGENDA.shape)))
    assert len(deals) == 12288
    for aspiration in partner.aspirations:
        slow = max(partner.reward(d) for d in deals if partner.worth(d) >= aspiration)
        assert partner.reach(aspiration) == slow


def test_an_offer_worth_the_aspiration_but_for_rounding_is_taken() -> None:
    for kernel in GAME.scenarios(Split.TRAIN, 20):
        partner = GAME.bargain(kernel)
        draw = bargain.private_draw(0, 5, kernel.kernel_id)
        exact = bargain.aspirations(0.35 + 0.2 * draw.u, 0.9, draw.beta, 5)
        for alpha, a in zip(exact, partner.aspirations, strict=True):
            assert alpha - 2e-12 < a < alpha


def test_distance_counts_salary_and_holiday_by_their_ranges() -> None:
    at = (25, 2, 1, 0, 2)
    away = AGENDA.distances(at)
    for cell in range(0, 12288, 97):
        other = AGENDA.terms(cell)
        expected = abs(at[0] - other[0]) / 31 + abs(at[1] - other[1]) / 5
        expected += sum(a != b for a, b in zip(at[2:], other[2:], strict=True))
        assert away[cell] / 155 == pytest.approx(expected, abs=1e-12)


def test_the_first_counter_is_the_workers_best_deal_with_the_salary_lowered() -> None:
    partner = GAME.bargain(KERNEL)
    for aspiration in partner.aspirations:
        salary, *rest = partner.counter(aspiration, None, None)
        # 7 days, Tokyo, Amazon and, at Amazon, Engineer.
        assert rest == [5, 0, 3, 0]
        assert partner.worth((salary, 5, 0, 3, 0)) >= aspiration
        assert salary == 0 or partner.worth((salary - 1, 5, 0, 3, 0)) < aspiration


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Position=Designer, Company=Google, Workplace=Seoul, Weekly Holiday=4, Salary=30", "all"),
        ("Salary: $30k; Holiday: 4; Seoul; Google; Designer", "all"),
        ("Salary=30", {"Salary": "30"}),
        ("How about Apple, as Engineer?", {"Company": "Apple", "Position": "Engineer"}),
        ("Salary=19", None),
        ("Salary=30 or Salary=31", None),
        ("Google or Apple?", None),
        ("We can't offer Tokyo", None),
        ("No Tokyo", None),
        ("Anything but Tokyo", None),
        ("Tokyo is out of the question", None),
        ("I'd hate Tokyo", None),
        ("Salary=30 is too low", None),
        ("Salary=30 to 35", None),
        ("Salary: 30-35", None),
        ("Apple or Tokyo", None),
        ("Let me ask my manager", None),
        ("Our sales are strong", None),
        ("You may be our Manager", None),
        ("I can do Salary=30 but only at Apple", {"Salary": "30", "Company": "Apple"}),
        ("Apple would work for me too", {"Company": "Apple"}),
        ("The salary is negotiable", None),
    ],
)
def test_plain_text_offers(text: str, terms: object) -> None:
    partner = GAME.bargain(KERNEL)
    turns = (
        GAME.opening(KERNEL),
        Turn(Role.PARTNER, f"\\boxed{{{j(Salary='51', Holiday='7')[1:-1]}}}"),
    )
    said = partner.plain_offer(text, turns)
    if terms is None:
        assert said is None
        return
    whole = {"Salary": "30"} if terms == "all" else {"Salary": "51", "Holiday": "7"} | dict(terms)  # type: ignore[call-overload]
    assert said == AGENDA.read(j(**whole)[9:-1])
    assert partner.plain_offer(text) == (said if terms == "all" else None)


def test_the_workers_words_are_true_and_name_no_number() -> None:
    for style in ("full", "compact"):
        game = make("job_interview", prompt_style=style)
        for kernel in GAME.scenarios(Split.TRAIN, 30):
            facts = kernel.facts["partner"]
            words = game.bargain(kernel).preference  # type: ignore[attr-defined]
            order = sorted(range(5), key=lambda i: -facts["weights"][i])
            names = [list(DEAL)[i] for i in order]
            company = facts["company"].index(1)
            assert words.lower().index(names[0].lower()) < words.lower().index(names[1].lower())
            for options, values in (
                (("Tokyo", "Seoul", "Beijing", "Sydney"), facts["workplace"]),
                (("Google", "Facebook", "Apple", "Amazon"), facts["company"]),
                (("Engineer", "Manager", "Designer", "Sales"), facts["position"][company]),
            ):
                assert [o for o in options if o in words] == [options[values.index(1)]]
            assert not any(c.isdigit() for c in words)
    assert make("job_interview", prompt_style="compact").bargain(KERNEL).preference == (  # type: ignore[attr-defined]
        "Workplace>Position Tokyo Amazon Engineer"
    )


def test_the_printed_conversation_reads_as_the_paper_says(talk: Talk) -> None:
    """Appendix J, in our words, with the box as printed."""
    turns = talk("Seoul and Google!", "Salary 30?", "More.", "Salary 45?", "Better.", J, J)
    outcome = GAME.read(KERNEL, turns)
    assert outcome is not None
    assert (outcome.ending, len(turns)) == (Ending.AGREED, 8)
    assert outcome.terms == DEAL | {"Salary": 45, "Holiday": 4}


def test_unilateral_closes_at_the_first_box(talk: Talk) -> None:
    game = JobInterview(JobInterviewOptions(closing="unilateral"))
    outcome = game.read(KERNEL, talk("-", J))
    assert outcome is not None
    assert (outcome.closed_by, outcome.closing_message) == ("box", 2)
    assert game.bargain(KERNEL).j_star(0.9) == {}
    assert "The first valid box" in game.view(KERNEL, Role.AGENT, ()).system


def test_prompts_tell_every_fact_of_their_side() -> None:
    for role, liking in ((Role.AGENT, "low"), (Role.PARTNER, "high")):
        prompt = GAME.view(KERNEL, role, ()).system
        side = KERNEL.facts[role.value]
        for weight in side["weights"]:
            assert f"weight {weight:.2f}" in prompt
        names = (
            ("Tokyo", "Seoul", "Beijing", "Sydney"),
            ("Google", "Facebook", "Apple", "Amazon"),
            ("Engineer", "Manager", "Designer", "Sales"),
        )
        for options, values in ((names[0], side["workplace"]), (names[1], side["company"])):
            listed = ", ".join(f"{o} {v:.2f}" for o, v in zip(options, values, strict=True))
            assert listed in prompt
        for company, row in zip(names[1], side["position"], strict=True):
            listed = ", ".join(f"{o} {v:.2f}" for o, v in zip(names[2], row, strict=True))
            assert f"at {company}: {listed}" in prompt
        assert prompt.count(f"You like it {liking}") == 2
        for fact in ("20 to 51, in thousands", "2 to 7", "both sides have boxed the same"):
            assert fact in prompt
        assert boxed.boxes(prompt) == (
            "AGREED: Salary=X Holiday=Y Workplace=Z Company=W Position=P",
            "NO DEAL",
        )
        assert AGENDA.read(boxed.boxes(prompt)[0][8:]) is None
    assert "recruiter" in GAME.view(KERNEL, Role.AGENT, ()).system


def test_option_prompt_decimals_changes_the_prompt_only(talk: Talk) -> None:
    fine = make("job_interview", prompt_decimals=4)
    assert "weight 0.1413" in fine.view(KERNEL, Role.AGENT, ()).system
    assert fine.read(KERNEL, talk(J, J)) == GAME.read(KERNEL, talk(J, J))
    with pytest.raises(ConfigError, match="'prompt_decimals' is 0; give a number from 1 to 6"):
        make("job_interview", prompt_decimals=0)


def test_compact_prompts_show_points_out_of_100() -> None:
    small = make("job_interview", prompt_style="compact")
    assert small.view(KERNEL, Role.AGENT, ()).system == (
        "Salary low 14, Holiday low 33, Tokyo 0 Seoul 4 Beijing 11 Sydney 2, "
        "Google 9 Facebook 4 Apple 14 Amazon 0, Engineer 27 18 27 0, Manager 17 27 0 2, "
        "Designer 0 0 8 1, Sales 0 22 16 27"
    )
    assert small.view(KERNEL, Role.PARTNER, ()).system.startswith("Salary high 19, Holiday high")
    for game in (GAME, small):
        opening = game.opening(KERNEL)
        assert opening.scripted
        assert AGENDA.said(opening.text) is None
        assert not boxed.boxes(opening.text)
        assert game.view(KERNEL, Role.AGENT, (opening,)).reminder is None
    for issue in DEAL:
        assert issue.lower() in GAME.opening(KERNEL).text


def test_private_values_never_reach_the_other_side() -> None:
    other = GAME.scenarios(Split.TRAIN, 2)[1]
    for role in Role:
        facts = {**KERNEL.facts, role.other.value: other.facts[role.other.value]}
        changed = Scenario(KERNEL.kernel_id, GAME.name, Split.TRAIN, facts)
        for style in ("full", "compact"):
            game = make("job_interview", prompt_style=style)
            assert game.view(KERNEL, role, ()) == game.view(changed, role, ())
            assert game.view(KERNEL, role.other, ()) != game.view(changed, role.other, ())
            assert game.opening(KERNEL) == game.opening(changed)


def test_a_foreign_scenario_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="'x' has no fact 'agent'; job_interview needs agent and"):
        GAME.view(Scenario("x", GAME.name, Split.TRAIN, {}), Role.AGENT, ())


def test_the_limit_is_ten_messages_after_the_opening() -> None:
    assert GAME.limit(KERNEL) == issues.LIMIT == 10
