"""Earlier rounds: weights worked by hand, and Q of one policy recovered from another's log."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from iterpo.domain import decisions
from iterpo.errors import ConfigError
from iterpo.policy_evaluation import fit
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.earlier import (
    EarlierRound,
    log_weights,
    turn_weights,
    weigh_rounds,
)
from iterpo.policy_evaluation.fit import fit_q
from iterpo.policy_evaluation.qfunction import ValueHead
from iterpo.policy_evaluation.regression import regress

ln = math.log
FREE = QConfig(pool_rounds=1, pool_max_weight=1e6, pool_min_ess=0.0)


def test_a_row_is_weighed_by_what_was_said_after_it() -> None:
    """Ratios 3, 2 and 1/4: the own one never counts, nor do those before."""
    found = log_weights([ln(3), ln(2), ln(1 / 4)])
    assert [math.exp(x) for x in found] == pytest.approx([0.5, 0.25, 1.0])
    assert log_weights([]) == ()


def test_weights_are_capped_and_scaled_down_to_their_effective_sample_size() -> None:
    """4, 1, 1 has 36/18 = 2 samples; capped at 2: sum 4, squares 6, so a scale of 2/3."""
    found, weights = turn_weights(3, [ln(4), 0.0, 0.0], replace(FREE, pool_max_weight=2.0))
    assert weights == pytest.approx((4 / 3, 2 / 3, 2 / 3))
    assert (found.t, found.rows, found.capped, found.used) == (3, 3, 1, True)
    assert found.ess == pytest.approx(2.0)
    # Two of three are 67%; a cap of 2 would make that 16/6 of three, 89%.
    strict = replace(FREE, pool_max_weight=2.0, pool_min_ess=0.7)
    assert not turn_weights(3, [ln(4), 0.0, 0.0], strict)[0].used
    assert found.mean_weight == pytest.approx(4 / 3)
    assert sum(weights) == pytest.approx(4**2 / 6)


def test_small_weights_are_never_scaled_up() -> None:
    """A lone row that the new policy would hardly have gone on like says as little."""
    found, weights = turn_weights(1, [ln(0.001)], FREE)
    assert weights == pytest.approx((0.001,))
    assert found.ess == pytest.approx(1.0)
    assert turn_weights(1, [ln(0.5), ln(0.25)], FREE)[1] == pytest.approx((0.5, 0.25))
    assert turn_weights(1, [-5000.0, -6000.0], FREE)[1] == pytest.approx((0.0, 0.0))
    huge, capped = turn_weights(1, [5000.0, 0.0], replace(FREE, pool_max_weight=10.0))
    assert huge.ess == pytest.approx(1.0)
    assert capped[0] == pytest.approx(10 * 11 / 101)


def rounds(talk, *ratios, reward=1.0):
    talks = tuple(talk(i, len(r), reward) for i, r in enumerate(ratios))
    return [EarlierRound(4, talks, tuple(tuple(map(ln, r)) for r in ratios), {"explored": 2})]


def test_a_turn_without_enough_effective_rows_is_left_out_and_counted(talk) -> None:
    """Turn 1 has weights 100, 1, 1, 1 (103^2 / 10003 = 1.06 of 4), turn 2 four times 1."""
    earlier = rounds(talk, (7.0, 100.0), *[(7.0, 1.0)] * 3)
    found = weigh_rounds(earlier, replace(FREE, pool_min_ess=0.3))
    assert [d.state.t for d in found.decisions] == [2, 2, 2, 2]
    assert found.weights == pytest.approx((1.0,) * 4)
    (told,) = found.rounds
    assert (told.round, told.conversations, told.rows, told.mass) == (4, 4, 4, 4.0)
    assert told.left_out == {"explored": 2, "rows_low_ess": 4}
    assert [(t.t, t.used) for t in told.turns] == [(1, False), (2, True)]
    assert told.turns[0].ess == pytest.approx(103**2 / 10003)
    assert len(weigh_rounds(earlier, replace(FREE, pool_min_ess=0.26)).decisions) == 8


def test_at_gamma_0_any_policys_rows_will_do(talk) -> None:
    found = weigh_rounds(rounds(talk, (7.0, 100.0, 0.1), (2.0, 3.0)), replace(FREE, gamma=0.0))
    assert found.weights == (1.0,) * 5
    assert sorted(d.ret for d in found.decisions) == [0.0, 0.0, 0.0, 1.0, 1.0]


# A game of two moves. After A the partner ends it at 0.5 in half of the cases, else C earns 0 and
# D earns 1; B ends it at 0.6. pi_j says D half of the time, pi_k in nine of ten cases, and A in
# seven of ten instead of half. At gamma 0.9:
Q_OLD = 0.5 * 0.5 + 0.5 * 0.9 * 0.5  # 0.475, less than B
Q_NEW = 0.5 * 0.5 + 0.5 * 0.9 * 0.9  # 0.655, more than B
WORDS = {"A": "aaaaaa", "B": "bbbbbb", "C": "cccccc", "D": "dddddd"}


def play(talk, moves, reward, n):
    words = [WORDS[m] for m in moves]
    same = talk(0, len(moves), reward, words=words)
    return [replace(same, id=f"{moves}{i}", kernel_id=f"{moves}{i}") for i in range(n)]


def logged(talk):
    """Conversations of pi_j in their exact shares, and the log ratios of pi_k."""
    a, b, c, d = ln(0.7 / 0.5), ln(0.3 / 0.5), ln(0.1 / 0.5), ln(0.9 / 0.5)
    parts = (("A", 0.5, 20, (a,)), ("AC", 0.0, 10, (a, c)), ("AD", 1.0, 10, (a, d)), ("B", 0.6, 40, (b,)))  # fmt: skip  # noqa: E501
    talks = [(x, ratios) for m, r, n, ratios in parts for x in play(talk, m, r, n)]
    return EarlierRound(0, tuple(x for x, _ in talks), tuple(r for _, r in talks))


def own(talk):
    """A few of pi_k, also in their exact shares."""
    parts = (("A", 0.5, 10), ("AC", 0.0, 1), ("AD", 1.0, 9), ("B", 0.6, 8))
    return [replace(c, id=f"own-{c.id}") for m, r, n in parts for c in play(talk, m, r, n)]


def test_the_mean_weight_is_1_and_weighed_returns_are_those_of_the_new_policy(talk) -> None:
    found = weigh_rounds([logged(talk)], FREE)
    # 60 rows of weight 1, ten of 0.2 and ten of 1.8 at the first turn; the last is never weighed.
    assert [t.mean_weight for t in found.rounds[0].turns] == pytest.approx([1.0, 1.0])
    assert found.rounds[0].turns[0].ess == pytest.approx(80**2 / (60 + 0.4 + 32.4))
    first = [
        (w, d.ret)
        for d, w in zip(found.decisions, found.weights, strict=True)
        if d.response.text == WORDS["A"]
    ]
    assert len(first) == 40
    weighed = sum(w * g for w, g in first) / sum(w for w, _ in first)
    assert weighed == pytest.approx(Q_NEW)
    assert sum(g for _, g in first) / 40 == pytest.approx(Q_OLD)


TABULAR = QConfig(
    hidden=32, learning_rate=3e-3, weight_decay=0.0, epochs=60, batch_size=32, dropout=0.0,
    standardise=True, holdout_fraction=0.0, pool_rounds=1,
)  # fmt: skip


def value_of(q, talk, move):
    row = decisions(talk(0, 1, 1.0, words=[WORDS[move]]), 0.9)[0]
    return q([row.state], [row.response])[0]


def test_the_weighed_fit_is_q_of_the_new_policy_and_the_unweighed_one_is_not(
    backbone, talk
) -> None:
    """From 80 conversations of pi_j and 28 of pi_k; without weights B looks better than A."""
    earlier = logged(talk)
    alike = replace(earlier, log_ratios=tuple((0.0,) * len(r) for r in earlier.log_ratios))
    weighed = fit_q(backbone, own(talk), TABULAR, earlier=[earlier]).q
    assert value_of(weighed, talk, "A") == pytest.approx(Q_NEW, abs=0.02)
    assert value_of(weighed, talk, "B") == pytest.approx(0.6, abs=0.02)
    unweighed = fit_q(backbone, own(talk), TABULAR, earlier=[alike]).q
    mixed = (20 * Q_NEW + 40 * Q_OLD) / 60
    assert value_of(unweighed, talk, "A") == pytest.approx(mixed, abs=0.02)
    assert value_of(unweighed, talk, "A") < value_of(unweighed, talk, "B") - 0.03


def test_weights_in_the_regression_are_as_good_as_copies_of_rows() -> None:
    x = torch.eye(2)[[0, 0, 1, 1]]
    g, w = torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.tensor([3.0, 1.0, 1.0, 4.0])
    config = replace(TABULAR, epochs=600, batch_size=4, standardise=False)
    weighed, alike = regress(x, g, config, weights=w), regress(x, g, config)
    with torch.no_grad():
        assert weighed(torch.eye(2)).tolist() == pytest.approx([0.25, 0.8], abs=0.01)
        assert alike(torch.eye(2)).tolist() == pytest.approx([0.5, 0.5], abs=0.01)
    scaled = regress(x, g, config, weights=w * 1000)  # only their ratios matter
    torch.testing.assert_close(scaled.outer, weighed.outer, atol=1e-3, rtol=0)


def test_scales_with_weights_are_those_of_copied_rows() -> None:
    torch.manual_seed(0)
    x, g, n = torch.randn(5, 3), torch.randn(5), torch.tensor([2, 1, 0, 3, 1])
    config = QConfig(standardise=True, clamp=True)
    weighed, copied = (ValueHead(3, 4, 1, 0.0) for _ in "ab")
    weighed.set_scales(x, g, config, n.float())
    copied.set_scales(x.repeat_interleave(n, 0), g.repeat_interleave(n), config)
    for name in ("return_mean", "return_scale", "feature_mean", "feature_scale"):
        torch.testing.assert_close(getattr(weighed, name), getattr(copied, name))
    assert (weighed.lowest, weighed.highest) == (copied.lowest, copied.highest)


def test_the_report_is_about_conversations_that_no_earlier_copy_gave_away(
    backbone, talk, monkeypatch
) -> None:
    talks = [talk(i, 2, float(i % 3)) for i in range(10)]
    copies = EarlierRound(0, tuple(talks), ((0.0, 0.0),) * 10)
    sizes = []
    real = fit.regress

    def spy(x, g, config, on_epoch, weights):
        sizes.append((len(x), None if weights is None else len(weights)))
        return real(x, g, config, on_epoch, weights)

    monkeypatch.setattr(fit, "regress", spy)
    config = QConfig(hidden=4, epochs=1, pool_rounds=1)
    report = fit_q(backbone, talks, config, earlier=[copies]).report
    assert (report.train.rows, report.heldout.rows, report.rows) == (16, 4, 20)
    assert sizes == [(32, 32), (40, 40)]
    assert report.pooled[0].rows == 20
    sizes.clear()
    # Kernels hold two conversations each here; whole ones are held out.
    by_kernel = fit_q(backbone, talks, replace(config, split_by="kernel"), earlier=[copies]).report
    assert by_kernel.heldout.rows == 4
    strangers = tuple(replace(c, system=f"{c.id}!") for c in talks)  # no copies, same kernels
    sizes.clear()
    fit_q(
        backbone, talks, replace(config, split_by="kernel"),
        earlier=[replace(copies, conversations=strangers)],
    )  # fmt: skip
    assert sizes == [(32, 32), (40, 40)]
    json.dumps(report.to_dict(), allow_nan=False)


def test_a_refused_round_adds_nothing_and_is_told(backbone, talk) -> None:
    talks = [talk(i, 2, float(i % 3)) for i in range(10)]
    config = QConfig(hidden=4, epochs=1, pool_rounds=1)
    refused = EarlierRound(3, left_out={"abandoned": 1}, refused="it was cut to a nucleus")
    plain, pooled = fit_q(backbone, talks, config), fit_q(backbone, talks, config, None, [refused])
    assert torch.equal(plain.q.head.outer, pooled.q.head.outer)
    assert "round 3 was not pooled: it was cut to a nucleus" in pooled.report.concerns()
    assert replace(pooled.report, pooled=()) == plain.report


@pytest.mark.parametrize(
    ("field", "value"), [("pool_rounds", -1), ("pool_max_weight", 0.5), ("pool_min_ess", 1.5)]
)
def test_impossible_settings_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"{field}: given {value}; accepted"):
        QConfig(**{field: value})
