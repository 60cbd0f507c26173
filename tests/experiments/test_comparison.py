"""Comparisons of methods: the statistics of a study worked by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from iterpo.errors import UnknownNameError
from iterpo.experiments.comparison import contrasts, players, standings, unmoved
from iterpo.experiments.study_records import StudyFacts

# By method and seed: selected round, and J of kernels a and b in it; pi_0 is worth 1 everywhere.
SCORES = {
    "iterpo": {1: (1, 1.0, 1.0), 2: (2, 1.0, 1.0)},
    "better": {1: (1, 3.0, 5.0), 2: (2, 4.0, 8.0)},
    "alike": {1: (0, 1.0, 1.0), 2: (0, 1.0, 1.0)},
    "base": {1: (0, 1.0, 1.0), 2: (0, 1.0, 1.0)},
    "oracle": {1: (0, 6.0, 8.0), 2: (0, 6.0, 8.0)},
}


def study() -> StudyFacts:
    records: list[dict[str, Any]] = []
    kernels: list[dict[str, Any]] = []
    for method, seeds in SCORES.items():
        for seed, (selected, *best) in seeds.items():
            for i in range(3 if method in ("iterpo", "better", "alike") else 1):
                values = best if i == selected else [1.0, 1.0] if i == 0 else [-9.0, -9.0]
                j = sum(values) / 2
                key = {"game": "g", "method": method, "seed": seed, "round": i, "split": "heldout"}
                row = {"selected": i == selected, "J_agent_turn": j, "gain": j - 1, "J_star": 7.0}
                row |= {"regret_closed": (j - 1) / 6, "agreement": 0.5, "turns": 2.0, "reward": j}
                row |= {"discount": 0.8, "deal": j / 0.4, "no_deal": 0.0}
                cost = {"conversations": 10, "tokens": 100, "wall_s": 30.0}
                cost |= {"steps": None if i == 0 else 4, "candidate_tokens": None if i == 0 else 40}
                records += [key | row | cost, key | row | cost | {"split": "train"}]
                kernels += [
                    {**key, "kernel": k, "n": 1, "J_agent_turn": v}
                    for k, v in zip("ab", values, strict=True)
                ]
    methods = {"iterpo": {}, "better": {}, "alike": {}}
    meta = {"reference": "iterpo", "study": {"environments": {"g": {}}, "methods": methods}}
    return StudyFacts(Path(), meta, tuple(records), tuple(kernels))


def test_differences_are_paired_by_kernel_in_the_selected_rounds() -> None:
    """The table of test_crossed: differences 2, 4 and 3, 7; standard error sqrt(3)."""
    found = {c.method: c for c in contrasts(study(), "g")}
    assert list(found) == ["better", "alike", "base", "oracle"]
    better = found["better"]
    assert better.found.difference.mean == 4
    assert better.found.difference.se == pytest.approx(math.sqrt(3))
    p = 1 - 2 / math.pi * math.atan(4 / math.sqrt(3))
    assert better.p_holm == pytest.approx(2 * p), "two methods are compared with the reference"
    assert found["alike"].p_holm == 1
    assert found["oracle"].p_holm is None, "a fixed agent is no method"
    json.dumps([c.to_dict() for c in found.values()], allow_nan=False)


def test_anybody_can_be_compared_with() -> None:
    found = {c.method: c for c in contrasts(study(), "g", "base")}
    assert found["better"].found.difference.mean == 4
    assert set(found) == {"iterpo", "better", "alike", "oracle"}
    assert found["alike"].p_holm == 1
    with pytest.raises(UnknownNameError, match="alike"):
        contrasts(study(), "g", "nobody")


def test_standings_are_means_over_seeds_with_their_standard_error() -> None:
    found = {s.method: s for s in standings(study(), "g")}
    assert tuple(found) == players(study()) == ("iterpo", "better", "alike", "base", "oracle")
    better = found["better"]
    assert (better.J.mean, better.J.se, better.seeds) == (5, pytest.approx(1.0), 2)  # 4 and 6
    assert better.gain is not None
    assert better.gain.mean == 4
    assert better.regret_closed is not None
    assert better.regret_closed.mean == pytest.approx(4 / 6)
    assert better.split is not None
    assert better.split.deal == pytest.approx(4), "agreement and lengths have not changed"
    assert better.split.total == pytest.approx(better.gain.mean)
    cost = better.cost
    assert (cost.conversations, cost.tokens, cost.steps) == (30, 300, 8)
    assert (cost.candidate_tokens, cost.minutes) == (80, 1.5)
    assert found["oracle"].cost.steps is None
    json.dumps([s.to_dict() for s in found.values()], allow_nan=False)


def test_a_method_that_stayed_at_pi_0_is_told() -> None:
    """Its gain of 0 without any spread is no measurement of its updates."""
    (told,) = unmoved(study(), "g")
    assert told.startswith("g: under 2 of 2 seeds the best round of alike")
