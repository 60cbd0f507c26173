"""PPO's formulas against numbers worked by hand, limits, and derivatives taken another way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from iterpo.domain import returns_to_go
from iterpo.policy_improvement.ppo_losses import (
    approximate_kl,
    clipped,
    clipped_surrogate,
    clipped_value_loss,
    explained_variance,
    masked_gae,
    whitened,
)

NAN = math.nan


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_worked_numbers_of_the_method_reference_by_turn() -> None:
    values = doubles(0.4, 0.5, 0.7)
    found, returns = masked_gae(doubles(0, 0, 1), values, torch.ones(3), 0.9, 0.95)
    assert found.tolist() == pytest.approx([0.3805, 0.3865, 0.3], abs=5e-5)
    assert returns.tolist() == pytest.approx([0.7805, 0.8865, 1.0], abs=5e-5)


def test_the_worked_numbers_of_the_method_reference_with_gaps() -> None:
    mask = torch.tensor([1, 1, 0, 0, 1])
    for between in (9.0, NAN, math.inf):  # what the partner says is never looked at
        values = doubles(0.2, 0.3, between, between, 0.5)
        found, returns = masked_gae(doubles(0, 0, 0, 0, 1), values, mask, 1.0, 0.95)
        assert found.tolist() == pytest.approx([0.74125, 0.675, 0.0, 0.0, 0.5])
        assert returns.tolist() == pytest.approx([0.94125, 0.975, 0.0, 0.0, 1.0])


numbers = st.floats(-2, 2, allow_nan=False)
places = st.lists(st.tuples(numbers, numbers, st.floats(0, 1), st.booleans()), min_size=1)


@given(places, st.floats(0, 1))
def test_with_a_mask_it_is_that_of_the_sequence_without_the_gaps(
    given_: list[tuple[float, float, float, bool]], lam: float
) -> None:
    rewards, values, discounts, mask = (torch.tensor(x) for x in zip(*given_, strict=True))
    found = masked_gae(rewards, values, mask, discounts, lam)
    dense = (x[mask] for x in (rewards, values))
    if mask.any():
        short = masked_gae(*dense, torch.ones(int(mask.sum())), discounts[mask], lam)
        for long, compact in zip(found, short, strict=True):
            torch.testing.assert_close(long[mask], compact)
    assert all((x[~mask] == 0).all() for x in found)


@given(places, st.floats(0, 1))
def test_lambda_1_is_the_return_less_v_and_lambda_0_the_error_of_one_step(
    given_: list[tuple[float, float, float, bool]], gamma: float
) -> None:
    rewards, values = [[row[i] for row in given_] for i in (0, 1)]
    tensors = doubles(*rewards), doubles(*values), torch.ones(len(values))
    far, returns = masked_gae(*tensors, gamma, 1.0)
    sums = returns_to_go(rewards, gamma)
    assert far.tolist() == pytest.approx([g - v for g, v in zip(sums, values, strict=True)])
    assert returns.tolist() == pytest.approx(sums)
    near, _ = masked_gae(*tensors, gamma, 0.0)
    ahead = [*values[1:], 0.0]
    assert near.tolist() == pytest.approx(
        [r + gamma * n - v for r, n, v in zip(rewards, ahead, values, strict=True)]
    )


def test_rows_of_a_batch_do_not_touch_each_other() -> None:
    rewards, values = doubles(0, 1), doubles(0.3, 0.6)
    alone, _ = masked_gae(rewards, values, torch.ones(2), 0.9, 0.95)
    both, _ = masked_gae(
        torch.stack([rewards.roll(1), rewards]),
        torch.stack([doubles(NAN, 5.0), values]),
        torch.tensor([[0, 1], [1, 1]]),
        0.9,
        0.95,
    )
    assert both[1].tolist() == alone.tolist()
    assert both[0].tolist() == [0.0, -5.0]


# By hand: log-ratios 0, +0.3, +0.3, -0.4, -0.4 (ratios 1, 1.35, 1.35, 0.67, 0.67), clip 0.2.
OLD = np.array([-1.0, -1.5, -0.5, -0.7, -2.0])
NEW = OLD + np.array([0.0, 0.3, 0.3, -0.4, -0.4])
GAIN = np.array([2.0, 1.0, -1.0, 1.0, -1.0])


def surrogate_by_cases(new: np.ndarray, clip: float) -> np.ndarray:
    """The same in the form of cases: a gain is paid up to the clip, a loss is paid in full."""
    out = []
    for n, o, a in zip(new, OLD, GAIN, strict=True):
        ratio = math.exp(n - o)
        paid = min(ratio, 1 + clip) if a > 0 else max(ratio, 1 - clip)
        out.append(-paid * a)
    return np.array(out)


def test_the_surrogate_and_its_gradient_are_those_of_another_derivation() -> None:
    new = doubles(*NEW).requires_grad_()
    loss = clipped_surrogate(new, doubles(*OLD), doubles(*GAIN), 0.2)
    assert loss.tolist() == pytest.approx([-2.0, -1.2, 1.349859, -0.670320, 0.8], abs=1e-6)
    assert loss.tolist() == pytest.approx(surrogate_by_cases(NEW, 0.2))
    loss.sum().backward()
    assert new.grad is not None
    step = 1e-6
    for i in range(len(NEW)):
        up, down = (surrogate_by_cases(NEW + s * np.eye(len(NEW))[i], 0.2) for s in (step, -step))
        assert float(new.grad[i]) == pytest.approx((up - down).sum() / (2 * step), abs=1e-6)
    stopped = clipped(new.detach(), doubles(*OLD), doubles(*GAIN), 0.2)
    assert stopped.tolist() == [False, True, False, False, True]
    assert (new.grad == 0).tolist() == stopped.tolist()


def test_at_ratio_1_the_gradient_is_that_of_the_plain_policy_gradient() -> None:
    new, plain = (doubles(*OLD).requires_grad_() for _ in range(2))
    clipped_surrogate(new, doubles(*OLD), doubles(*GAIN), 0.2).sum().backward()
    (-plain * doubles(*GAIN)).sum().backward()
    assert new.grad is not None
    assert plain.grad is not None
    assert new.grad.tolist() == pytest.approx(plain.grad.tolist())


def test_a_value_gains_nothing_beyond_the_clip() -> None:
    # G = 1; V was 0.5. Within the clip: half the square. At 0.9 the clipped 0.7 is farther off
    # and flat; at 0.1 nothing protects the value from being pulled back.
    values = doubles(0.6, 0.9, 0.1).requires_grad_()
    loss = clipped_value_loss(values, doubles(0.5, 0.5, 0.5), doubles(1, 1, 1), 0.2)
    assert loss.tolist() == pytest.approx([0.08, 0.045, 0.405])
    loss.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([-0.4, 0.0, -0.9])


def test_the_kl_of_a_token_is_never_negative_and_right_on_average() -> None:
    old = torch.log_softmax(doubles(0.3, -1.0, 2.0, 0.0), -1)
    new = torch.log_softmax(doubles(0.0, 0.5, 1.0, -2.0), -1)
    each = approximate_kl(new, old)
    assert (each > 0).all()
    exact = float((old.exp() * (old - new)).sum())
    assert float((old.exp() * each).sum()) == pytest.approx(exact)
    assert approximate_kl(old, old).tolist() == [0.0] * 4


def test_whitening_and_explained_variance() -> None:
    assert whitened(doubles(1.0, 3.0)).tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5])
    assert whitened(doubles(0.4, 0.4, 0.4)).tolist() == pytest.approx([0.0] * 3, abs=1e-9)
    returns = doubles(0.0, 1.0, 2.0)
    assert explained_variance(returns, returns) == 1
    assert explained_variance(returns, returns + 5) == 1  # a constant error costs no variance
    assert explained_variance(returns, doubles(1, 1, 1)) == 0
    assert explained_variance(returns, -returns) == -3
    assert math.isnan(explained_variance(doubles(1, 1), doubles(0, 1)))
