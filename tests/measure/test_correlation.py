"""The interval of a correlation: by hand, clustered, and with the coverage that it promises."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from iterpo.measure.correlation import correlation_interval
from iterpo.measure.intervals import t_quantile

X, Y, NAMES = [1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 1.0, 4.0, 3.0, 5.0], list("abcde")


def test_as_plain_correlations_without_each_cluster_tell() -> None:
    """r = 8 / 10, and without a, b, ... by an independent formula."""
    found = correlation_interval(X, Y, NAMES)
    assert found is not None
    assert found.mean == pytest.approx(0.8)
    left = [
        math.atanh(statistics.correlation(X[:i] + X[i + 1 :], Y[:i] + Y[i + 1 :])) for i in range(5)
    ]
    se = math.sqrt(4 / 5 * 5 * statistics.pvariance(left))
    assert found.se == pytest.approx(se * (1 - 0.64))
    half = t_quantile(0.975, 4) * se
    assert found.low == pytest.approx(math.tanh(math.atanh(0.8) - half))
    assert found.high == pytest.approx(math.tanh(math.atanh(0.8) + half))
    assert (found.n, found.clusters) == (5, 5)


def test_what_says_nothing() -> None:
    assert correlation_interval([1.0] * 5, Y, NAMES) is None
    assert correlation_interval(X, [2.0] * 5, NAMES) is None
    assert correlation_interval([], [], []) is None
    few = correlation_interval(X, Y, list("aabbc"))
    assert few is not None
    assert (few.low, few.high, few.clusters) == (-1.0, 1.0, 3)
    for y in (X, [0.0, 0.0, 0.0, 0.0, 1.0]):  # on a line; constant without e
        unknown = correlation_interval(X, y, NAMES)
        assert unknown is not None
        assert (unknown.low, unknown.high) == (-1.0, 1.0)


def test_pain_75_copies_within_a_kernel_are_no_evidence() -> None:
    once, thrice = correlation_interval(X, Y, NAMES), correlation_interval(X * 3, Y * 3, NAMES * 3)
    assert once is not None
    assert thrice is not None
    assert (once.low, once.high) == pytest.approx((thrice.low, thrice.high))


def test_of_unrelated_numbers_one_in_forty_seems_positive() -> None:
    """Four rows of a kernel share its return, so counting rows would say so far more often."""
    rng, above, naive = random.Random(3), 0, 0
    for _ in range(600):
        names = [f"k{i // 4}" for i in range(80)]
        x = [k + rng.gauss(0, 0.5) for k in (rng.gauss(0, 1) for _ in range(20)) for _ in range(4)]
        y = [g for g in (rng.gauss(0, 1) for _ in range(20)) for _ in range(4)]
        found = correlation_interval(x, y, names)
        rows = correlation_interval(x, y, [str(i) for i in range(80)])
        assert found is not None
        assert rows is not None
        above, naive = above + (found.low > 0), naive + (rows.low > 0)
    assert 0.01 < above / 600 < 0.04
    assert naive / 600 > 0.1
