"""Differences over seeds and kernels at once: worked by hand, and right in how often they err."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from iterpo.errors import BatchError
from iterpo.measure.crossed import averaged_difference, crossed_difference
from iterpo.measure.intervals import paired_difference, t_tail


def table(rows, shift=0.0):
    return {
        s: {f"k{j}": v + shift for j, v in enumerate(row)} for s, row in enumerate(rows, start=1)
    }


def against_zero(rows):
    return crossed_difference(table(rows), table([[0.0] * len(r) for r in rows]))


def test_a_table_of_two_seeds_and_two_kernels_worked_by_hand():
    """MS seeds 4, kernels 9, rest 1: variance (4 + 9 - 1) / 4 = 3, df 144 / (16 + 81 + 1)."""
    found = against_zero([[2.0, 4.0], [3.0, 7.0]])
    assert found.difference.mean == 4
    assert found.difference.se == pytest.approx(math.sqrt(3))
    assert found.df == pytest.approx(144 / 98)
    assert found.difference.high == pytest.approx(4 + 12.7062 * math.sqrt(3), rel=1e-4)
    # With one degree of freedom T is a Cauchy variable.
    assert found.p == pytest.approx(1 - 2 / math.pi * math.atan(4 / math.sqrt(3)))
    assert (found.seeds, found.kernels, found.over) == (2, 2, "seeds and kernels")
    json.dumps(found.to_dict(), allow_nan=False)


def test_it_is_never_less_sure_of_nothing_than_seeds_or_kernels_alone():
    """Where the other one has a negative estimate: MS rest 16 swallows MS seeds 0."""
    found = against_zero([[0.0, 4.0, 2.0], [4.0, 0.0, 2.0]])
    assert found.difference.se == 0
    found = against_zero([[1.0, 5.0], [5.0, 3.0]])  # MS seeds 1, kernels 1, rest 9
    assert found.difference.se == pytest.approx(0.5)
    assert found.df == 1


def test_one_seed_is_the_paired_difference_over_kernels():
    new, old = [1.0, 4.0, 2.0], [0.5, 1.0, 2.5]
    found = crossed_difference(table([new]), table([old]))
    known = paired_difference((new, list("abc")), (old, list("abc")))
    assert (found.difference.mean, found.difference.se) == pytest.approx((known.mean, known.se))
    assert found.difference.low == pytest.approx(known.low)
    assert (found.over, found.df) == ("kernels", 2)
    assert against_zero([[1.0], [2.0], [4.0]]).over == "seeds"


def test_a_single_pair_shows_no_spread():
    found = against_zero([[1.0]])
    assert math.isnan(found.p)
    assert found.difference.high == math.inf
    assert found.to_dict()["p"] is None


def test_only_what_both_sides_have_is_paired():
    new = {1: {"a": 1.0, "b": 2.0}, 2: {"a": 3.0, "b": 3.0}, 3: {"a": 9.0}}
    old = {1: {"a": 0.0, "c": 2.0}, 2: {"a": 0.0, "b": 0.0}}
    found = crossed_difference(new, old)
    assert (found.seeds, found.kernels, found.difference.mean) == (2, 1, 2.0)
    with pytest.raises(BatchError, match="0 shared seeds"):
        crossed_difference({1: {"a": 1.0}}, {2: {"a": 1.0}})


def test_equal_methods_differ_by_nothing():
    rows = table([[1.0, 2.0], [3.0, 4.0]])
    found = crossed_difference(rows, rows)
    assert (found.difference.mean, found.difference.se, found.p) == (0, 0, 1)


@pytest.mark.parametrize("spread", [(1.0, 1.0, 1.0), (0.0, 1.0, 2.0), (1.0, 0.0, 2.0)])
def test_the_interval_covers_as_often_as_it_says_where_one_over_kernels_does_not(spread):
    rng = np.random.default_rng(0)
    by_seed, by_kernel, rest = spread
    covered, alone, times = 0, 0, 300
    for _ in range(times):
        rows = (
            rng.normal(0, by_seed, (4, 1))
            + rng.normal(0, by_kernel, (1, 15))
            + rng.normal(0, rest, (4, 15))
        )
        covered += (
            against_zero(rows.tolist()).difference.low
            <= 0
            <= (against_zero(rows.tolist()).difference.high)
        )
        one = against_zero([rows.mean(axis=0).tolist()]).difference
        alone += one.low <= 0 <= one.high
    assert 0.92 <= covered / times <= 0.995
    if by_seed:
        assert alone / times < 0.9


@pytest.mark.parametrize(("t", "df", "p"), [(12.7062, 1, 0.05), (-2.7764, 4, 0.05), (0.0, 3, 1.0)])
def test_p_values_are_those_of_the_tables(t, df, p):
    assert t_tail(t, df) == pytest.approx(p, abs=1e-5)


def test_a_mean_over_environments_worked_by_hand():
    """Variances 3 and 4 / 4 in units of the scales, so (3 + 1) / 4 = 1; df 16 / (9 / d + 1 / 1)."""
    one = against_zero([[2.0, 4.0], [3.0, 7.0]])  # mean 4, variance 3, df d = 144 / 98
    two = against_zero([[1.0, 5.0]])  # mean 3, variance 4, df 1, over kernels alone
    found = averaged_difference([one, two], [1.0, 2.0])
    assert found.difference.mean == pytest.approx((4 + 1.5) / 2)
    assert found.difference.se == pytest.approx(1)
    assert found.df == pytest.approx(16 / (9 / (144 / 98) + 1))
    assert found.difference.high == pytest.approx(2.75 + 4.3027, rel=1e-4)  # t(0.975, 2 of 2.25)
    assert found.p == pytest.approx(t_tail(2.75, 2))
    assert (found.seeds, found.kernels, found.difference.n) == (1, 4, 6)
    assert found.over == "kernels", "what all parts are for"


def test_a_mean_over_environments_claims_nothing_that_one_of_them_does_not():
    pair, seeds = against_zero([[1.0]]), against_zero([[1.0], [2.0], [4.0]])
    kernels = against_zero([[1.0, 2.0, 4.0]])
    for parts in ([kernels, pair], [kernels, seeds]):
        found = averaged_difference(parts, [1.0, 1.0])
        assert found.over == "nothing"
        assert math.isnan(found.p)
        assert found.difference.low == -math.inf
    still = against_zero([[2.0, 2.0, 2.0]])
    assert averaged_difference([still, still], [1.0, 1.0]).p == 0


def test_its_interval_covers_as_often_as_it_says():
    """Three seeds in each of six environments whose spreads differ: few degrees of freedom each."""
    rng = np.random.default_rng(1)
    covered, times = 0, 400
    for _ in range(times):
        parts = []
        for game in range(6):
            by_seed = 0.5 + game / 4
            rows = rng.normal(0, by_seed, (3, 1)) + rng.normal(0, 1, (1, 8))
            parts.append(against_zero((rows + rng.normal(0, 1, (3, 8))).tolist()))
        found = averaged_difference(parts, [1.0] * 6).difference
        covered += found.low <= 0 <= found.high
    assert 0.92 <= covered / times <= 0.995
