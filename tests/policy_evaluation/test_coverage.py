"""Coverage: distances by hand, and what counts as never tried."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from iterpo.policy_evaluation.coverage import nearest_logged, unseen  # noqa: E402


def test_distances_are_in_units_of_the_logged_spread_and_skip_the_own_conversation() -> None:
    """Logged 0, 2, 4 in the first feature: spread sqrt(8/3); the second never varies."""
    logged = torch.tensor([[0.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    groups = ["a", "b", "c"]
    found = nearest_logged(torch.tensor([[0.0, 5.0], [9.0, 5.0]]), ["a", "z"], logged, groups)
    unit = math.sqrt(8 / 3)
    # In conversation a the row at 0 is its own; the nearest of another one lies 2 away.
    assert found.tolist() == pytest.approx([2 / unit, 5 / unit])
    apart = nearest_logged(torch.tensor([[0.0, 8.0]]), ["z"], logged, groups)
    assert apart.tolist() == pytest.approx([3.0]), "a constant feature keeps its own unit"


def test_a_twentieth_of_what_is_like_the_log_is_unseen_and_all_that_is_far() -> None:
    groups = [f"c{i // 4}" for i in range(400)]
    shares = []
    for seed in range(10):  # a single one lies between 1% and 8%
        generator = torch.Generator().manual_seed(seed)
        logged, alike = (torch.randn(400, 4, generator=generator) for _ in range(2))
        shares.append(float(unseen(alike, groups, logged, groups).float().mean()))
        assert bool(unseen(alike + 10, groups, logged, groups).all())
    assert 0.03 <= sum(shares) / 10 <= 0.065


def test_a_twin_that_compares_within_a_conversation_would_find_all_familiar() -> None:
    """Turns of one conversation lie together; only others say whether something is usual."""
    centres = torch.arange(40.0)[:, None] * 10
    logged = (centres + torch.tensor([0.0, 0.1])).reshape(-1, 1)
    groups = [f"c{i // 2}" for i in range(80)]
    usual = nearest_logged(logged, groups, logged, groups)
    spread = float(logged.std(correction=0))
    assert usual.min() * spread == pytest.approx(9.9, rel=1e-3)


def test_one_conversation_has_nothing_to_be_compared_with() -> None:
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    assert not unseen(rows + 50, ["a"] * 5, rows, ["a"] * 5).any()
