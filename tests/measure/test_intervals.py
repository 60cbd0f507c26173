"""Intervals: clustered, honest at the boundary, unmoved by duplicates."""

from __future__ import annotations

import json
import math
import random
import statistics

import pytest

from iterpo.measure.intervals import (
    mean_interval,
    paired_difference,
    proportion_interval,
    t_quantile,
)


@pytest.mark.parametrize(
    ("df", "expected"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423), (99, 1.9842)],
)
def test_t_quantiles_are_those_of_the_tables(df, expected):
    assert t_quantile(0.975, df) == pytest.approx(expected, abs=5e-5)
    assert t_quantile(0.025, df) == -t_quantile(0.975, df)


def test_t_quantile_at_99_percent_and_for_many_degrees():
    assert t_quantile(0.995, 5) == pytest.approx(4.0321, abs=5e-5)
    assert t_quantile(0.975, 301) == pytest.approx(1.96, abs=1e-3)


def test_one_sample_per_cluster_is_the_ordinary_standard_error():
    values = [1.0, 2.0, 4.0, 8.0]
    found = mean_interval(values, list("abcd"))
    assert found.se == pytest.approx(statistics.stdev(values) / 2)
    assert found.high - found.mean == pytest.approx(3.1824 * found.se, rel=1e-4)


def test_pain_75_duplicating_samples_leaves_every_interval_unchanged():
    rng = random.Random(0)
    clusters = [f"k{i % 7}" for i in range(40)]
    values = [rng.gauss(int(c[1]), 1) for c in clusters]
    hits = [v > 3 for v in values]
    for make, data in ((mean_interval, values), (proportion_interval, hits)):
        once, thrice = make(data, clusters), make(list(data) * 3, clusters * 3)
        assert (once.se, once.low, once.high) == pytest.approx(
            (thrice.se, thrice.low, thrice.high), rel=1e-9
        )
        naive = make(list(data) * 3, [str(i) for i in range(120)])
        assert naive.high - naive.low < (once.high - once.low) / 1.5, "clusters are ignored"


def test_pain_75_repeats_of_a_scenario_do_not_count_as_evidence():
    """Four identical conversations per kernel are worth one."""
    values = [float(i % 2) for i in range(20)]
    kernels = [str(i) for i in range(20)]
    one, four = mean_interval(values, kernels), mean_interval(values * 4, kernels * 4)
    assert four.se == pytest.approx(one.se)


@pytest.mark.parametrize("hit", [False, True])
def test_pain_75_zero_and_twenty_of_twenty_have_width(hit):
    kernels = [str(i) for i in range(20)]
    found = proportion_interval([hit] * 20, kernels)
    assert found.mean == float(hit)
    assert found.se > 0.02
    # Wilson: 3.8415 / (20 + 3.8415)
    assert found.high - found.low == pytest.approx(0.1611, abs=1e-3)
    assert 0.0 <= found.low <= found.mean <= found.high <= 1.0
    repeated = proportion_interval([hit] * 80, kernels * 4)
    assert (repeated.low, repeated.high) == pytest.approx((found.low, found.high))
    fewer = proportion_interval([hit] * 20, [str(i % 5) for i in range(20)])
    assert fewer.high - fewer.low > 2 * (found.high - found.low)


def test_wilson_covers_at_its_nominal_rate_with_clusters():
    """20 kernels x 4 conversations whose success depends on the kernel: about 95% cover."""
    rng = random.Random(1)
    covered = naive = 0
    for _ in range(400):
        hits, kernels = [], []
        for k in range(20):
            p = rng.choice([0.2, 1.0])  # mean 0.6
            hits += [rng.random() < p for _ in range(4)]
            kernels += [str(k)] * 4
        found = proportion_interval(hits, kernels)
        covered += found.low <= 0.6 <= found.high
        wrong = proportion_interval(hits, [str(i) for i in range(80)])
        naive += wrong.low <= 0.6 <= wrong.high
    assert 0.92 <= covered / 400 <= 0.99
    assert naive / 400 < 0.87


def test_a_single_cluster_says_nothing_about_others():
    found = mean_interval([1.0, 2.0], ["a", "a"])
    assert math.isnan(found.se)
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert str(found) == "1.500 ± ?"
    assert found.to_dict() == {
        "mean": 1.5,
        "se": None,
        "low": None,
        "high": None,
        "n": 2,
        "clusters": 1,
    }
    json.dumps(found.to_dict(), allow_nan=False)
    share = proportion_interval([True, False], ["a", "a"])
    assert share.high - share.low > 0.8


def test_pairing_removes_what_kernels_differ_by():
    kernels = [f"k{i}" for i in range(30)]
    base = [10.0 * i for i in range(30)]
    new = [b + 1 + 0.1 * (i % 3) for i, b in enumerate(base)]
    found = paired_difference((new, kernels), (base, kernels))
    assert found.mean == pytest.approx(1.1)
    assert found.low > 1.0
    assert mean_interval(new, kernels).se > 10
    assert found.clusters == 30


def test_unshared_kernels_and_unequal_counts():
    found = paired_difference(([1.0, 3.0, 9.0], ["a", "a", "x"]), ([0.0, 7.0], ["a", "y"]))
    assert (found.mean, found.n, found.clusters) == (2.0, 3, 1)
    assert paired_difference(([1.0], ["a"]), ([1.0], ["b"])) is None


@pytest.mark.parametrize("values", [[], [math.nan]])
def test_what_has_no_mean_is_refused(values):
    with pytest.raises(ValueError, match="an interval needs"):
        mean_interval(values, ["a"] * len(values))
