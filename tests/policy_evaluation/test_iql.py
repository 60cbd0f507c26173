"""Implicit Q-learning: worked numbers, gradients by another route, a problem with known values."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from iterpo.errors import ConfigError, TrainingError
from iterpo.policy_evaluation.iql import (
    Backups,
    advantages,
    backup,
    expectile_loss,
    fit,
    follow,
    losses,
)
from iterpo.policy_evaluation.iql_config import IqlConfig

CONFIG = IqlConfig(learning_rate=0.05, batch_size=4, accumulation=2, epochs=3)


class Table(nn.Module):
    """Twin Q by (state, action) and twin V by state."""

    def __init__(self, n_actions: int, n_states: int, spread: float = 0.5) -> None:
        super().__init__()
        drawn = torch.Generator().manual_seed(7)
        self.q = nn.Parameter(spread * torch.randn(n_actions, 2, generator=drawn))
        self.v = nn.Parameter(spread * torch.randn(n_states, 2, generator=drawn))


@dataclass(frozen=True)
class Cells:
    """Which cells of the tables n transitions lead from and to."""

    pairs: Tensor
    now: Tensor
    then: Tensor

    def values(self, critic: Table, rows: Tensor) -> tuple[Tensor, Tensor]:
        return critic.q[self.pairs[rows]], critic.v[self.now[rows]]

    def following(self, critic: Table, rows: Tensor) -> Tensor:
        return critic.v[self.then[rows]]


def problem(gamma: float = 0.9) -> tuple[Cells, Backups, list[tuple[int, int, float, int | None]]]:
    """Three states in a row, two logged actions each: (s, a, r, s')."""
    steps: list[tuple[int, int, float, int | None]] = [
        (0, 0, 0.0, 1), (0, 1, 0.2, None), (1, 0, 0.0, 2), (1, 1, 0.5, None),
        (2, 0, 0.3, None), (2, 1, 1.0, None),
    ]  # fmt: skip
    cells = Cells(
        torch.tensor([2 * s + a for s, a, _, _ in steps]),
        torch.tensor([s for s, *_ in steps]),
        torch.tensor([s if then is None else then for s, _, _, then in steps]),
    )
    data = Backups(
        torch.tensor([r for *_, r, _ in steps]),
        torch.full((len(steps),), gamma),
        torch.tensor([then is None for *_, then in steps]),
    )
    return cells, data, steps


def test_the_worked_numbers() -> None:
    """Spec A3: u = [.2, -.1] at tau .9 -> [.036, .001], mean .0185; y = r + discount (1 - d) V."""
    terms = expectile_loss(torch.tensor([0.2, -0.1]), 0.9)
    assert terms.tolist() == pytest.approx([0.036, 0.001])
    assert terms.mean().item() == pytest.approx(0.0185)
    assert expectile_loss(torch.zeros(1), 0.9).item() == 0.0
    y = backup(
        torch.tensor([0.0, 1.0]),
        torch.tensor([0.9, 0.9]),
        torch.tensor([False, True]),
        torch.tensor([[0.5, 0.7], [0.5, 0.7]]),
    )
    assert y.flatten().tolist() == pytest.approx([0.45, 0.63, 1.0, 1.0])  # each twin by itself


def test_an_expectile_of_a_half_is_half_the_squared_error() -> None:
    u = torch.linspace(-1, 1, 11)
    assert torch.equal(expectile_loss(u, 0.5), 0.5 * u.square())


def test_gradients_equal_a_derivation_by_hand() -> None:
    """dL/dQ_i(s,a) = 2 (Q_i - y_i) / n; dL/dV_i(s) = -2 w u / n, both summed over the rows."""
    cells, data, steps = problem()
    critic, target = Table(6, 3), Table(6, 3, spread=0.8)
    rows = torch.arange(len(steps))
    found = losses(critic, target, cells, data, rows, 0.9)
    torch.autograd.backward((found.q + found.v).sum())
    q, v, far_q, far_v = (x.tolist() for x in (critic.q, critic.v, target.q, target.v))
    wanted_q = [[0.0, 0.0] for _ in range(6)]
    wanted_v = [[0.0, 0.0] for _ in range(3)]
    for (s, a, r, then), i in itertools.product(steps, range(2)):
        y = r + (0.0 if then is None else 0.9 * far_v[then][i])
        wanted_q[2 * s + a][i] += 2 * (q[2 * s + a][i] - y) / len(steps)
        u = far_q[2 * s + a][i] - v[s][i]
        wanted_v[s][i] += -2 * (0.9 if u > 0 else 0.1) * u / len(steps)
    assert critic.q.grad is not None
    assert critic.v.grad is not None
    torch.testing.assert_close(critic.q.grad, torch.tensor(wanted_q))
    torch.testing.assert_close(critic.v.grad, torch.tensor(wanted_v))
    assert target.q.grad is None
    assert target.v.grad is None, "targets give no gradient"


def test_the_target_follows_by_a_share() -> None:
    target, critic = Table(1, 1), Table(1, 1)
    with torch.no_grad():
        target.q.fill_(1.0)
        critic.q.fill_(3.0)
    follow(target, critic, 0.05)
    assert target.q.flatten().tolist() == pytest.approx([1.1, 1.1])
    follow(target, critic, 0.05)
    assert target.q.flatten().tolist() == pytest.approx([1.195, 1.195])
    assert critic.q.flatten().tolist() == [3.0, 3.0]


def test_the_target_follows_after_every_step_of_several_passes() -> None:
    """6 rows in steps of 4 (2 x 2): two steps an epoch, and as many moves of the target."""
    cells, data, _ = problem()
    config = IqlConfig(learning_rate=1e-9, batch_size=2, accumulation=2, epochs=1, target_ema=0.5)
    critic, target = Table(6, 3), Table(6, 3)
    with torch.no_grad():
        target.q.zero_()
    fit(critic, target, cells, data, config)
    torch.testing.assert_close(target.q.detach(), 0.75 * critic.q.detach(), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("expectile", "tolerance"), [(0.999, 0.02), (0.5, 0.005)])
def test_v_nears_the_best_logged_action_as_tau_nears_one(
    expectile: float, tolerance: float
) -> None:
    """Against dynamic programming: the maximum, and at 1/2 the mean over the logged actions."""
    cells, data, _ = problem()
    if expectile > 0.9:
        v = [0.9 * 0.9 * 1.0, 0.9 * 1.0, 1.0]  # always going on beats 0.2 and 0.5
    else:
        v2 = (0.3 + 1.0) / 2
        v1 = (0.9 * v2 + 0.5) / 2
        v = [(0.9 * v1 + 0.2) / 2, v1, v2]
    critic = Table(6, 3, spread=0.1)  # below the values: what lies above them falls slowly
    target = copy.deepcopy(critic)
    config = IqlConfig(
        learning_rate=0.01, batch_size=6, accumulation=1, epochs=350, expectile=expectile,
        target_ema=0.2,
    )  # fmt: skip
    fit(critic, target, cells, data, config)
    for twin in range(2):
        assert critic.v[:, twin].tolist() == pytest.approx(v, abs=tolerance)
        assert critic.q[:, twin].tolist() == pytest.approx(
            [0.9 * v[1], 0.2, 0.9 * v[2], 0.5, 0.3, 1.0], abs=tolerance
        )
    found = advantages(critic, cells, 6, batch_size=4)
    wanted = [0.9 * v[1] - v[0], 0.2 - v[0], 0.9 * v[2] - v[1], 0.5 - v[1], 0.3 - v[2], 1 - v[2]]
    assert found.tolist() == pytest.approx(wanted, abs=2 * tolerance)


def test_advantages_are_of_the_smaller_twin_of_each() -> None:
    critic = Table(1, 1)
    with torch.no_grad():
        critic.q.copy_(torch.tensor([[0.7, 0.4]]))
        critic.v.copy_(torch.tensor([[0.1, 0.6]]))
    one = torch.zeros(1, dtype=torch.long)
    found = advantages(critic, Cells(one, one, one), 1, batch_size=1)
    assert found.tolist() == pytest.approx([0.3])  # not .4 - .6, nor .7 - .1


def test_accumulation_changes_nothing_but_memory() -> None:
    """pain 39: 2 x 2 equals 4 x 1, also in the last, smaller step."""
    cells, data, _ = problem()
    after = []
    for batch_size, accumulation in ((2, 2), (4, 1)):
        critic = Table(6, 3)
        config = replace(CONFIG, batch_size=batch_size, accumulation=accumulation)
        fit(critic, copy.deepcopy(critic), cells, data, config)
        after.append(torch.cat([critic.q, critic.v]).detach())
    torch.testing.assert_close(*after, atol=1e-6, rtol=0)


def test_equal_seeds_give_equal_bytes_and_others_do_not() -> None:
    cells, data, _ = problem()
    told: list[dict[str, float]] = []

    def learned(seed: int) -> Tensor:
        critic = Table(6, 3)
        fit(
            critic,
            copy.deepcopy(critic),
            cells,
            data,
            replace(CONFIG, batch_size=1, accumulation=1, seed=seed),
            lambda _, values: told.append(dict(values)),
        )
        return critic.q.detach()

    before = torch.get_rng_state()
    assert torch.equal(learned(3), learned(3))
    assert not torch.equal(learned(3), learned(4))
    assert torch.equal(torch.get_rng_state(), before), "the process's own draws are left alone"
    assert len(told) == 4 * 3
    assert told[0].keys() == {"q_loss", "v_loss"}
    assert told[2]["q_loss"] < told[0]["q_loss"]


def test_a_diverging_critic_is_an_error() -> None:
    cells, data, _ = problem()
    with pytest.raises(TrainingError, match="diverged in epoch 1"):
        fit(
            Table(6, 3),
            Table(6, 3),
            cells,
            replace(data, rewards=data.rewards * float("inf")),
            CONFIG,
        )


def test_impossible_settings_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"(?s)expectile: given 1\.0.*target_ema: given 0"):
        IqlConfig(1e-4, 8, expectile=1.0, target_ema=0)
