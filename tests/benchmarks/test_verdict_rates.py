"""How often `improved` is said of what is not better, in small worlds; a larger one is measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from iterpo.policy_evaluation.base import QConfig  # noqa: E402


@pytest.fixture
def module(learning: Any) -> Any:
    return learning("verdict_rates")


@pytest.fixture
def small(module: Any) -> Any:
    q = QConfig(hidden=16, heads=2, learning_rate=1e-2, epochs=6)
    return module.Size(kernels=30, turns=2, states=40, wide=3, features=8, q=q)


def test_a_judge_of_noise_does_not_praise(module: Any, small: Any) -> None:
    """One that knows nothing excluded 0 in every fifth case, while it had to know nothing."""
    found = module.rates(module.World(), small, worlds=6, moves=12)
    assert found["judge"]["improved"] <= 0.03
    assert found["verdict"]["improved"] <= 0.05
    assert found["before"]["improved"] >= 0.1


def test_a_policy_that_is_better_is_still_told(module: Any, small: Any) -> None:
    """A judge that is never heard would pass the other test."""
    clear = replace(module.WORLDS["better"], worth=0.0, effect=2.0, along=(1.0, 0.0))
    found = module.rates(clear, small, worlds=2, moves=10)
    assert found["judge"]["improved"] >= 0.3
    assert found["verdict"]["improved"] >= 0.8


def test_a_world_is_as_it_is_described(module: Any, small: Any) -> None:
    world = module.World(worth=0.5, effect=0.7, follows=True, along=(-0.3, 0.95))
    drawn = module.Drawn(world, replace(small, kernels=20_000), 1)
    log = drawn.log()
    way = drawn.move()
    assert way @ drawn.good == pytest.approx(-0.3)
    returns = log.returns
    moved = world.effect * ((log.u + way) @ drawn.good - log.u @ drawn.good).sum(1) / 2**0.5
    assert moved.mean() == pytest.approx(0.7 * -0.3 * 2**0.5), "what the move is worth"
    weights = module.np.exp(((log.e @ way) - 0.5 * (way @ way)).sum(axis=1))
    gain = (weights * returns).sum() / weights.sum() - returns.mean()
    assert gain == pytest.approx(moved.mean(), abs=0.08), "and what importance weights say of it"
