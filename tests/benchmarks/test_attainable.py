"""What an agent can get that sees the partner's draw only in its counters, worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.fixture
def module(learning: Any) -> Any:
    return learning("attainable")


@pytest.fixture
def best(module: Any) -> Any:
    return module.best_without_the_draw


def test_a_simple_plan_demands_once_and_then_asks_for_what_was_countered(module: Any) -> None:
    reach = np.array([[0.0, 1.0, 1.0], [0.0, 0.5, 0.8]])
    assert module.simple_plan(reach, 0.9) == pytest.approx((1.0 + 0.45) / 2)  # demands 1
    assert module.simple_plan(np.array([[0.0, 1.0], [0.0, 0.95]]), 0.9) == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("reach", "opens", "expected"),
    [
        ([[0.0, 1.0], [0.0, 0.0]], False, 0.5),  # asks for 1, which one of two partners takes
        # Asks for 1; of the other it accepts the counter at action 2: (1 + 0.9 x 0.4) / 2.
        ([[0.0, 1.0, 1.0], [0.0, 0.4, 0.4]], False, 0.68),
        # Nothing in a hurry: both look alike at first; at action 2 it asks for 1, or takes 0.5 of
        # both: 0.9 x max(0.5, (1 + 0.9 x 0.5) / 2), the second by accepting at action 3.
        ([[0.0, 0.5, 1.0], [0.0, 0.5, 0.5]], False, 0.9 * (1 + 0.45) / 2),
        ([[0.9, 0.9, 0.9], [0.9, 1.0, 1.0]], True, (1.0 + 0.81) / 2),  # 0.905: asks for 1 first
        ([[0.95, 0.95, 0.95], [0.95, 0.95, 1.0]], True, 0.95),  # the box of turn 1 is best
        ([[0.7], [0.7]], True, 0.7),
        ([[0.7], [0.7]], False, 0.0),
    ],
)
def test_best_without_the_draw(
    best: Any, reach: list[list[float]], opens: bool, expected: float
) -> None:
    assert best(np.array(reach), 0.9, opens) == pytest.approx(expected)


def test_it_is_never_above_the_best_of_who_knows(best: Any) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        reach = np.sort(rng.random((40, 5)), axis=1)  # concessions only grow
        reach[:, 0] = reach[:, 0].min()
        steps = 0.9 ** np.arange(4)
        knowing = (steps * reach[:, 1:]).max(axis=1).mean()
        assert best(reach, 0.9, False) <= knowing + 1e-12
