from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from iterpo.policy_improvement.advantages import group_advantages

NAN = math.nan


def advantages(rewards: list[float], size: int, **options: object) -> list[float]:
    return group_advantages(
        torch.tensor(rewards, dtype=torch.float64), size, **options
    ).values.tolist()  # type: ignore[arg-type]


def test_the_worked_numbers_of_the_method_reference() -> None:
    scores = [1.0, 0.0, 0.0, 1.0]
    assert advantages(scores, 4) == pytest.approx([0.8659, -0.8659, -0.8659, 0.8659], abs=1e-4)
    assert advantages(scores, 4, scale="none") == [0.5, -0.5, -0.5, 0.5]


def test_pain_34_a_missing_score_leaves_the_siblings_those_of_the_smaller_group() -> None:
    result = group_advantages(torch.tensor([0.2, NAN, 0.9, 0.4, 0.1, 0.2, 0.3, 0.4]), 4)
    assert result.values[[0, 2, 3]].tolist() == pytest.approx(advantages([0.2, 0.9, 0.4], 3))
    assert result.values[1] == 0
    assert result.scored.tolist() == [True, False, True, True, True, True, True, True]
    assert result.values[4:].tolist() == pytest.approx(advantages([0.1, 0.2, 0.3, 0.4], 4))


def test_an_infinite_score_is_no_score() -> None:
    result = group_advantages(torch.tensor([0.2, math.inf, 0.9, -math.inf]), 4)
    assert result.scored.tolist() == [True, False, True, False]
    assert result.values.isfinite().all()


@pytest.mark.parametrize("scores", [[0.3] * 4, [0.3, 0.3 + 1e-8, 0.3, 0.3 - 1e-8]])
def test_pain_32_equal_and_nearly_equal_scores_give_no_advantage(scores: list[float]) -> None:
    result = group_advantages(torch.tensor(scores, dtype=torch.float64), 4)
    assert result.values.abs().max() == 0
    assert result.tied.tolist() == [True]


@pytest.mark.parametrize("scores", [[NAN, NAN, NAN, NAN], [0.5, NAN, NAN, NAN]])
def test_fewer_than_two_scores_say_nothing(scores: list[float]) -> None:
    result = group_advantages(torch.tensor(scores), 4)
    assert result.values.tolist() == [0, 0, 0, 0]
    assert result.tied.tolist() == [True]


def test_the_floor_keeps_noise_small_and_leaves_wide_groups_alone() -> None:
    narrow = [0.500, 0.501, 0.502, 0.501]
    wide = [0.0, 1.0, 0.5, 0.5]
    assert max(advantages(narrow, 4)) > 1
    assert max(advantages(narrow, 4, std_floor=0.05)) < 0.03
    assert advantages(wide, 4, std_floor=0.05) == advantages(wide, 4)


def test_batch_scale_divides_every_group_by_the_deviation_of_all() -> None:
    scores = [1.0, 0.0, 0.6, 0.4]
    divisor = float(torch.tensor(scores).std()) + 1e-4
    assert advantages(scores, 2, scale="batch") == pytest.approx(
        [0.5 / divisor, -0.5 / divisor, 0.1 / divisor, -0.1 / divisor]
    )


@given(st.lists(st.floats(-10, 10), min_size=6, max_size=6), st.permutations(range(6)))
def test_advantages_sum_to_zero_and_follow_a_permutation(scores: list[float], p: list[int]) -> None:
    plain = advantages(scores, 6)
    assert sum(plain) == pytest.approx(0, abs=1e-4)
    assert advantages([scores[i] for i in p], 6) == pytest.approx([plain[i] for i in p], abs=1e-5)
