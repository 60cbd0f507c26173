"""The judge: whom it is fitted on, and how sure it is, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from iterpo.domain import Conversation, PolicyRef, State, decisions
from iterpo.errors import BatchError
from iterpo.measure.intervals import t_quantile
from iterpo.methods.judge import REFITS, Judge, fit_heads, fit_judge, mean_gain
from iterpo.models.backbone import load
from iterpo.policy_evaluation.base import QConfig, TuneConfig
from iterpo.policy_evaluation.fit import fit_q
from methods.conftest import talk

Q = QConfig(epochs=2, learning_rate=1e-2, hidden=16, heads=2)


def state(name: str, kernel: str) -> State:
    return State(name, kernel, 1, ())


def reader(factor: float) -> Any:
    return SimpleNamespace(scores=lambda x: factor * x[:, 0])


A, B, C = state("a", "k"), state("b", "k"), state("c", "l")
NEW = torch.tensor([[1.3], [1.1], [0.4], [1.4], [math.nan]])
OLD = torch.tensor([[1.0], [1.0], [0.5], [1.0], [1.0]])
STATES = [A, A, B, C, C]


def test_a_gain_is_a_mean_over_states_of_differences_clustered_by_kernel() -> None:
    """States a (+0.3, +0.1) and b (-0.1) in kernel k, c (+0.4) in l: means 0.2, -0.1, 0.4."""
    found = mean_gain(reader(1.0), STATES, [NEW, OLD], 0.95)
    assert found is not None
    assert found.mean == pytest.approx(0.5 / 3)
    # Deviations summed by kernel: -1/15 - ... = (0.2 - 0.1 - 2 m) and (0.4 - m), m the mean.
    sums = (0.1 - 1 / 3, 0.4 - 0.5 / 3)
    assert found.se == pytest.approx(math.sqrt((sums[0] ** 2 + sums[1] ** 2) * 2) / 3)
    assert (found.n, found.clusters) == (3, 2)
    assert mean_gain(reader(1.0), [C], [NEW[4:], OLD[4:]], 0.95) is None


def test_the_judges_interval_holds_what_its_refits_disagree_by() -> None:
    """Refits that say 0, 1, 2 times the gain: a standard deviation of one gain."""
    judge = Judge(reader(1.0), tuple(reader(f) for f in (0.0, 1.0, 2.0)), kernels=5)
    alone = mean_gain(judge.q, STATES, [NEW, OLD], 0.9)
    found = judge.gain(STATES, [NEW, OLD], 0.9)
    assert alone is not None
    assert found is not None
    assert found.mean == alone.mean
    assert found.se == pytest.approx(math.hypot(alone.se, 0.5 / 3 * math.sqrt(6 / 4)))
    half = t_quantile(0.95, 1) * found.se  # two kernels of states, five of returns, three refits
    assert (found.low, found.high) == pytest.approx((found.mean - half, found.mean + half))
    sure = Judge(judge.q, judge.refits, kernels=1).gain(STATES, [NEW, OLD], 0.9)
    assert sure is not None
    assert (sure.low, sure.high) == (-math.inf, math.inf)


def test_refits_weigh_whole_kernels_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    from iterpo.methods import judge as module

    seen: list[tuple[int, Any]] = []
    monkeypatch.setattr(
        module,
        "regress",
        lambda x, y, config, weights=None: seen.append((config.seed, weights)),
    )
    fit_heads(torch.zeros(5, 3), torch.zeros(5), ["k", "l", "k", "m", "l"], Q)
    (_, first), *others = seen
    assert first is None
    assert len(others) == REFITS
    assert len({seed for seed, _ in seen}) == REFITS + 1
    for _, weights in others:
        assert weights[0] == weights[2] > 0
        assert weights[1] == weights[4]
        assert len(set(weights.tolist())) == 3
    assert len({tuple(w.tolist()) for _, w in others}) == REFITS


def test_it_is_q_on_true_returns_and_frozen_features(policy: PolicyRef) -> None:
    talks = [talk(i) for i in range(6)]
    backbone = load(policy)
    odd = replace(Q, shuffle_returns=True, pessimism=1.0, tune=TuneConfig(r=2), estimator="sarsa")
    judge = fit_judge(backbone, talks, odd)
    config = judge.q.config
    assert judge.q.backbone is backbone
    assert (config.shuffle_returns, config.pessimism, config.tune) == (False, 0.0, None)
    assert (config.seed != Q.seed, config.estimator) == (True, "monte_carlo")
    assert judge.kernels == 6
    plain = fit_q(backbone, talks, config).q
    rows = [d for c in talks for d in decisions(c, config.gamma)]
    asked = [d.state for d in rows], [d.response for d in rows]
    assert judge.q(*asked) == pytest.approx(plain(*asked), abs=1e-6)
    said = [q(*asked) for q in judge.refits]
    assert len({tuple(s) for s in said}) == REFITS


def test_what_can_not_be_learnt_from_is_an_error(policy: PolicyRef) -> None:
    def same(c: Conversation) -> Conversation:
        return replace(c, outcome=replace(c.outcome, reward=1.0))

    with pytest.raises(BatchError, match="one outcome only"):
        fit_judge(load(policy), [same(talk(i)) for i in range(3)], replace(Q, gamma=1.0))
