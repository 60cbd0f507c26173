"""QHealth: known numbers, and None where nothing can be said."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from iterpo.domain import decisions
from iterpo.policy_evaluation.health import Fit, Part, QHealth, convergence, fit_quality


def test_worked_numbers():
    fit = fit_quality([1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 8.0], [1, 1, 2, 2])
    assert (fit.pearson, fit.spearman) == (pytest.approx(1.0), pytest.approx(1.0))
    assert (fit.slope, fit.intercept) == (pytest.approx(2.0), pytest.approx(0.0))
    assert fit.mse == pytest.approx(7.5)  # (1 + 4 + 9 + 16) / 4
    assert fit.variance == pytest.approx(5.0)
    assert fit.r2 == pytest.approx(-0.5)
    assert [(t.t, t.n, t.mean_return, t.mean_q) for t in fit.turns] == [
        (1, 2, 3.0, 1.5),
        (2, 2, 7.0, 3.5),
    ]


def test_rank_correlation_shares_ties():
    # Ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3: 4.5 / sqrt(4.5 * 5).
    fit = fit_quality([0.0, 1.0, 1.0, 9.0], [0.0, 1.0, 2.0, 3.0], [1] * 4)
    assert fit.spearman == pytest.approx(4.5 / math.sqrt(4.5 * 5.0))


def test_calibrated_predictions_have_slope_1_and_bins_on_the_diagonal():
    rng = np.random.default_rng(0)
    q = rng.random(5000)
    fit = fit_quality(q, (rng.random(5000) < q).astype(float), [1] * 5000)
    assert fit.slope == pytest.approx(1.0, abs=0.1)
    assert fit.intercept == pytest.approx(0.0, abs=0.05)
    assert len(fit.bins) == 10
    assert all(b.predicted == pytest.approx(b.observed, abs=0.08) for b in fit.bins)
    assert sum(b.n for b in fit.bins) == 5000


@pytest.mark.parametrize(
    ("q", "g"),
    [([], []), ([1.0], [2.0]), ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]), ([1.0, 2.0, 3.0], [0.0] * 3)],
)
def test_tiny_and_constant_parts_give_none_never_nan(q, g):
    fit = fit_quality(q, g, [1] * len(q))
    assert fit.pearson is None
    assert fit.spearman is None
    report = QHealth(Part(), Part(), fit, fit)
    json.dumps(report.to_dict(), allow_nan=False)
    assert report.concerns()


def test_concerns_name_what_is_wrong():
    bad = QHealth(Part(5, 5, 5), Part(9, 3, 3), Fit(pearson=-0.2, r2=-1.0), Fit())
    assert [c[:8] for c in bad.concerns()] == ["held-out", "held-out"]
    good = QHealth(Part(5, 5, 5), Part(9, 3, 3), Fit(pearson=0.5, r2=0.2), Fit())
    assert good.concerns() == ()


def test_convergence_is_the_mean_gap_over_the_spread_of_returns(talk):
    rows = decisions(talk(0, 3, 1.0), 0.9)
    spread = np.std([0.81, 0.9, 1.0])

    def constant(*scores):
        return lambda states, responses: list(scores)

    new, old = constant(0.5, 0.7, None), constant(0.4, 0.9, 0.3)
    assert convergence(new, old, rows) == pytest.approx(0.15 / spread)
    assert convergence(new, new, rows) == 0.0
    assert convergence(new, constant(None, None, 1.0), rows) is None
    flat = decisions(talk(0, 3, 0.0), 0.9)
    assert convergence(new, old, flat) == math.inf
    assert convergence(new, new, flat) == 0.0


def test_returns_of_other_policies_are_a_concern():
    own = QHealth(Part(), Part(), Fit(), Fit(), policy="r1-a", policies={"r1-a": 5, "": 2})
    mixed = replace(own, policies={"r1-a": 5, "r0-b": 3})
    assert not any("other policies" in text for text in own.concerns())
    assert any(text.startswith("3 conversations") for text in mixed.concerns())
