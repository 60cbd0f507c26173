"""The overview of a study: ranks, shares of J* and differences over several games, by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from iterpo.experiments.overall import overview
from iterpo.experiments.study_records import StudyFacts

# J of kernels a and b, by game and method; J* is 10 in g and 100 in h.
SCORES: dict[str, dict[str, tuple[float, float]]] = {
    "g": {"iterpo": (4, 6), "other": (1, 5), "third": (4, 6), "base": (2, 2)},
    "h": {"iterpo": (40, 40), "other": (50, 70), "third": (20, 20), "base": (20, 20)},
}
FIXED = {"oracle": (10, 10)}


def study(scores: dict[str, dict[str, tuple[float, float]]], star: Any = None) -> StudyFacts:
    stars = star or {"g": 10.0, "h": 100.0}
    records: list[dict[str, Any]] = []
    kernels: list[dict[str, Any]] = []
    for game, told in scores.items():
        start = sum(SCORES[game]["base"]) / 2
        for method, values in told.items():
            j = sum(values) / 2
            key = {"game": game, "method": method, "seed": 1, "round": 0, "split": "heldout"}
            top = stars[game]
            closed = (j - start) / (top - start) if top else None
            row = {"selected": True, "J_agent_turn": j, "gain": j - start, "J_star": top}
            row |= {"regret_closed": closed, "agreement": 0.5, "turns": 2.0, "reward": j}
            row |= {"discount": 0.8, "deal": j / 0.4, "no_deal": 0.0}
            cost = {"conversations": 10, "tokens": 100, "wall_s": 30.0}
            cost |= {"steps": None, "candidate_tokens": None}
            records += [key | row | cost]
            kernels += [
                {**key, "kernel": k, "n": 1, "J_agent_turn": v}
                for k, v in zip("ab", values, strict=True)
            ]
    methods: dict[str, Any] = {m: {} for m in scores["g"] if m not in ("base", *FIXED)}
    known = {"environments": {g: {} for g in scores}, "methods": methods}
    return StudyFacts(
        Path(), {"reference": "iterpo", "study": known}, tuple(records), tuple(kernels)
    )


def test_ranks_shares_and_differences_worked_by_hand() -> None:
    found = overview(study({g: told | FIXED for g, told in SCORES.items()}))
    assert found is not None
    assert found.games == ("g", "h")
    rows = {r.method: r for r in found.rows}
    assert set(rows) == {"iterpo", "other", "third", "base"}, "fixed agents do not rank"
    # g: iterpo and third 5, other 3, base 2. h: other 60, iterpo 40, third and base 20.
    ranks = {"iterpo": (1.5 + 2) / 2, "other": (3 + 1) / 2, "third": 2.5, "base": (4 + 3.5) / 2}
    assert {m: r.rank for m, r in rows.items()} == ranks
    assert [r.method for r in found.rows] == ["iterpo", "other", "third", "base"]
    assert rows["iterpo"].attained == pytest.approx((0.5 + 0.4) / 2)
    assert rows["other"].regret_closed == pytest.approx((1 / 8 + 40 / 80) / 2)
    gap = rows["other"].difference
    assert gap is not None
    # By kernel: -3 and -1 of 10, then 10 and 30 of 100; standard errors 1 / 10 and 10 / 100.
    assert gap.difference.mean == pytest.approx((-0.2 + 0.2) / 2)
    assert gap.difference.se == pytest.approx(math.hypot(0.1, 0.1) / 2)
    assert gap.df == pytest.approx(2)
    assert gap.over == "kernels"
    assert rows["other"].p_holm == pytest.approx(1)
    assert rows["iterpo"].difference is None
    json.dumps(found.to_dict(), allow_nan=False)


def test_games_with_a_sure_difference_are_named() -> None:
    """third is level with iterpo in g, and 20 below it on both kernels of h: no spread, p 0."""
    found = overview(study(SCORES))
    assert found is not None
    third = next(r for r in found.rows if r.method == "third")
    assert (third.above, third.below) == ((), ("h",))
    beside = overview(study(SCORES), "third")
    assert beside is not None
    ours = next(r for r in beside.rows if r.method == "iterpo")
    assert (ours.above, ours.below, beside.against) == (("h",), (), "third")
    base = next(r for r in found.rows if r.method == "base")
    assert base.p_holm is None, "pi_0 is no method"


def test_only_games_that_all_have_played_count() -> None:
    part = {**SCORES, "h": {m: v for m, v in SCORES["h"].items() if m != "other"}}
    assert overview(study(part)) is None, "one game is no overview"
    assert overview(study(SCORES), "nobody") is None
    failed = {g: {m: v for m, v in told.items() if m != "base"} for g, told in SCORES.items()}
    assert overview(study(failed), "third") is not None, "pi_0 of a failed reference is not there"


def test_a_fixed_agent_that_has_not_played_all_games_leaves_ranks_alone() -> None:
    found = overview(study({"g": SCORES["g"] | FIXED, "h": SCORES["h"]}), "oracle")
    assert found is not None
    assert found.games == ("g", "h")
    assert {r.difference for r in found.rows} == {None}


def test_without_j_star_ranks_remain() -> None:
    stars: dict[str, float | None] = {"g": 10.0, "h": None}
    found = overview(study(SCORES, stars))
    assert found is not None
    assert {r.attained for r in found.rows} == {None}
    assert {r.difference for r in found.rows} == {None}
    assert found.rows[0].rank == 1.75
