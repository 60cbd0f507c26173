"""What the benchmarks of learning count, by hand: gains, regret, claims, and their arms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from iterpo.experiments.plan import load_plan

LEARNING = Path(__file__).parents[2] / "benchmarks" / "learning"


def row(arm: str, seed: int, i: int, j: float, **more: Any) -> dict[str, Any]:
    fixed = {"game": "g", "split": "heldout", "J_star": 1.0, "gain_se": 0.05, "selected": i == 1}
    return {**fixed, "arm": arm, "seed": seed, "round": i, "J_agent_turn": j, **more}


@pytest.fixture
def records(learning: Any) -> list[dict[str, Any]]:
    """Two seeds of one game; ``base`` stands in round 0 of every learning arm."""
    raw = [
        *(row("iterpo", s, 0, j) for s, j in ((3, 0.5), (4, 0.6))),
        *(row("iterpo", s, 1, j) for s, j in ((3, 0.76), (4, 0.52))),
        *(row("shuffled-returns", s, 0, 0.5) for s in (3, 4)),
        *(row("shuffled-returns", s, 1, j) for s, j in ((3, 0.45), (4, 0.43))),
        *(row("first-counter", s, 0, 0.7, selected=True) for s in (3, 4)),
    ]
    found: list[dict[str, Any]] = learning("cells").with_regret(raw)
    return found


def test_claims_are_counted_as_worked_by_hand(learning: Any, records: Any) -> None:
    bars = learning("bars")
    gains = bars.paired(records, "iterpo", "base")["g"]  # +.26 and -.08
    assert gains == pytest.approx((0.09, 0.17, 2))
    against_noise = bars.paired(records, "iterpo", "shuffled-returns")["g"]  # +.31 and +.09
    assert against_noise == pytest.approx((0.2, 0.11, 2))
    assert bars.fallen(records) == ["g seed 4: -0.080 (SE 0.050)"]
    assert bars.drops(records) == ["g seed 4: round 1 0.520 after 0.600"]
    # .26 of .5 for seed 3; -.08 of .4 for seed 4.
    assert bars.closed(records) == pytest.approx({"g": (0.52 - 0.2) / 2})
    yardstick = [r for r in records if r["arm"] == "first-counter" and r["seed"] == 3]
    assert yardstick[0]["gain"] == pytest.approx(0.2), "a fixed agent is compared with base"
    said = bars.report(records).splitlines()
    assert [line.split()[-1] for line in said if line.startswith("iterpo >")] == ["NO"] * 3


def test_the_picture_shows_what_the_claims_are_made_of(learning: Any, records: Any) -> None:
    module = learning("figure")
    (panel,) = module.figure(records).panels
    ours, control, rule = panel.lines
    assert ours.x == (0, 1)
    assert (*ours.y, *ours.se) == pytest.approx((0.55, 0.64, 0.05, 0.12))
    assert control.y == pytest.approx((0.5, 0.44))
    assert (rule.x, rule.y) == ((0, 1), (0.7, 0.7)), "it does not learn"
    assert panel.level == 1.0
    cells = module.table(records).splitlines()[-1].strip("| ").split(" | ")
    assert cells == (
        ["g", "2", "0.55", "0.64", "+0.09 ± 0.17", "0.44 (+0.20 ± 0.11)", "0.70", "1.00", "16%"]
    )


def test_committed_records_are_of_the_recipe_as_it_stands(learning: Any) -> None:
    """An option that is new and unset leaves a plan what it was, so no cell is played again."""
    cells = learning("cells")
    told = json.loads((LEARNING.parent / "results" / "improvement-nano.json").read_text())
    plan = cells.cell_plan(LEARNING / "improvement.yaml", "ultimatum", [], 3)
    kept = {r["plan"] for r in told["records"] if (r["arm"], r["seed"]) == ("iterpo", 3)}
    assert cells.short(plan) in kept
    figures = cells.cell_plan(LEARNING / "improvement.yaml", "ultimatum", ["q.numbers=8"], 3)
    assert cells.short(figures) not in kept


def test_each_arm_is_another_experiment_and_paper_is_the_preset(learning: Any) -> None:
    ablations = learning("ablations")
    path = LEARNING / "improvement.yaml"
    plans = {name: load_plan(path, arm) for name, arm in ablations.ABLATIONS.items()}
    plans["iterpo"] = load_plan(path)
    assert len({p.identity() for p in plans.values()}) == len(plans)
    ours, paper = load_plan(path, ablations.PAPER), load_plan("paper")
    for name in ("pooling", "heads", "standardise", "clamp", "learning_rate", "epochs"):
        assert getattr(ours.q, name) == getattr(paper.q, name), name
    for name in ("batch_size", "judge_fraction", "pool_rounds", "pessimism"):
        assert getattr(ours.q, name) == getattr(paper.q, name), name
    for name in ("learning_rate", "kl_target", "beta", "std_floor", "group_size"):
        assert getattr(ours.improve, name) == getattr(paper.improve, name), name
    for ours_, papers in ((ours.improve, paper.improve), (ours.collect, paper.collect)):
        ways = [(p.sampling.temperature, p.sampling.top_p) for p in (ours_, papers)]
        assert ways[0] == ways[1]
    assert ours.roll_back == paper.roll_back
