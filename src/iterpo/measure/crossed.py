"""Crossed: a paired difference over seeds and kernels at once, where every seed plays all kernels.

Two things are drawn in a comparison of methods: the training runs (seeds) and the circumstances
(kernels). An interval over kernels alone says what these runs are worth, one over seeds alone what
the method is worth on these kernels. The interval here covers both: it is where the mean difference
of the *methods* would be found with new seeds on new kernels of the same kinds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from iterpo.errors import BatchError
from iterpo.measure.intervals import Interval, t_quantile, t_tail

__all__ = ["Crossed", "Scores", "averaged_difference", "crossed_difference"]

Over = Literal["seeds and kernels", "seeds", "kernels", "nothing"]

Scores = Mapping[int, Mapping[str, float]]
"""Mean of a kernel's conversations, by seed and kernel."""


@dataclass(frozen=True, slots=True)
class Crossed:
    """Mean of new - old, paired by seed and kernel; every pair weighs the same."""

    difference: Interval
    """Estimate and interval; ``n`` counts the pairs, ``clusters`` the kernels."""
    seeds: int
    """Seeds that both sides have."""
    kernels: int
    """Kernels that both sides played under each of them."""
    over: Over
    """What the interval is for: new ones of these. With a single seed it is about these very runs,
    with a single kernel about that one."""
    df: float
    """Degrees of freedom by Satterthwaite's formula; the interval takes the whole number below."""
    p: float
    """Two-sided p-value of no difference; NaN where nothing shows a spread."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        told = {k: v if math.isfinite(v) else None for k, v in (("df", self.df), ("p", self.p))}
        counts = {"seeds": self.seeds, "kernels": self.kernels, "over": self.over}
        return {**self.difference.to_dict(), **counts, **told}


def crossed_difference(new: Scores, old: Scores, confidence: float = 0.95) -> Crossed:
    """The mean difference of two methods that were run with the same seeds on the same kernels.

    With d_sk the difference of seed s on kernel k, taken as mean + seed + kernel + rest, and the
    mean squares of a two-way table without replicates,

        Var(mean) = (MS_seeds + MS_kernels - MS_rest) / (S K),

    never less than what seeds or kernels alone imply (the estimate of the other may be negative).

    Args:
        new: Values by seed and kernel.
        old: The same of the other method.
        confidence: Coverage of the interval.

    Raises:
        BatchError: if the two share no seed, or no kernel under all shared seeds.

    >>> new = {1: {"a": 3.0, "b": 5.0}, 2: {"a": 4.0, "b": 8.0}}
    >>> found = crossed_difference(new, {s: {"a": 1.0, "b": 1.0} for s in new})
    >>> found.difference.mean, found.over
    (4.0, 'seeds and kernels')
    """
    seeds = sorted(new.keys() & old.keys())
    kernels = sorted(
        set.intersection(*(set(side[s]) for side in (new, old) for s in seeds)) if seeds else ()
    )
    if not kernels:
        raise BatchError(
            f"there is nothing to pair: {len(seeds)} shared seeds, and no kernel that both sides "
            "played under all of them; a comparison needs the same seeds and the same kernels"
        )
    table = [[new[s][k] - old[s][k] for k in kernels] for s in seeds]
    n = len(seeds) * len(kernels)
    mean = math.fsum(map(math.fsum, table)) / n
    variance, df, over = _variance_of_mean(table, mean)
    interval = _interval(mean, math.sqrt(variance), df, confidence, n, len(kernels))
    p = _p_value(mean, interval.se, df)
    return Crossed(interval, len(seeds), len(kernels), over, df, p)


def averaged_difference(
    parts: Sequence[Crossed], scales: Sequence[float], confidence: float = 0.95
) -> Crossed:
    """The mean over environments of differences, each in units of a scale of its own.

    The environments are these, no sample of others; the runs in one are independent of those in
    another. So the variance of the mean of G of them is the sum of theirs over G^2, and its degrees
    of freedom are Welch and Satterthwaite's, (sum v)^2 / sum(v^2 / df).

    Args:
        parts: Differences, one an environment; at least one.
        scales: What each is divided by, above 0; such as J* where returns differ in scale.
        confidence: Coverage of the interval.

    Returns:
        Counts: the pairs and kernels of all, the seeds of the one with the fewest; the interval is
        for new ones of what all intervals are for.

    >>> one = crossed_difference({1: {"a": 1.0, "b": 3.0}}, {1: {"a": 0.0, "b": 0.0}})
    >>> two = averaged_difference([one, one], [1.0, 2.0])
    >>> two.difference.mean, two.difference.se == math.hypot(1, 1 / 2) / 2, two.df
    (1.5, True, 1.4705882352941178)
    """
    n = len(parts)
    mean = math.fsum(c.difference.mean / s for c, s in zip(parts, scales, strict=True)) / n
    variances = [(c.difference.se / s / n) ** 2 for c, s in zip(parts, scales, strict=True)]
    shared = set.intersection(*(set(c.over.split(" and ")) for c in parts))
    options: tuple[Over, ...] = get_args(Over)
    over = next((o for o in options if set(o.split(" and ")) == shared), options[-1])
    known = over != "nothing"
    df = _satterthwaite(variances, [c.df for c in parts]) if known else 0.0
    pairs, kernels = sum(c.difference.n for c in parts), sum(c.kernels for c in parts)
    se = math.sqrt(math.fsum(variances)) if known else math.nan
    interval = _interval(mean, se, df, confidence, pairs, kernels)
    return Crossed(interval, min(c.seeds for c in parts), kernels, over, df, _p_value(mean, se, df))


def _satterthwaite(variances: Sequence[float], df: Sequence[float]) -> float:
    spread = math.fsum(v * v / d for v, d in zip(variances, df, strict=True))
    return math.fsum(variances) ** 2 / spread if spread else min(df)


def _interval(
    mean: float, se: float, df: float, confidence: float, n: int, kernels: int
) -> Interval:
    half = t_quantile(0.5 + confidence / 2, max(1, math.floor(df))) * se if df else math.inf
    return Interval(mean, se, mean - half, mean + half, n, kernels)


def _p_value(mean: float, se: float, df: float) -> float:
    if not df:
        return math.nan
    if se == 0:
        return 1.0 if mean == 0 else 0.0
    return t_tail(mean / se, max(1, math.floor(df)))


def _variance_of_mean(table: Sequence[Sequence[float]], mean: float) -> tuple[float, float, Over]:
    """Variance of the mean, its degrees of freedom, and what they are over."""
    s, k = len(table), len(table[0])
    rows = [math.fsum(row) / k - mean for row in table]
    columns = [math.fsum(column) / s - mean for column in zip(*table, strict=True)]
    if s == 1 and k == 1:
        return math.nan, 0.0, "nothing"
    if s == 1:
        return _square(columns) / (k - 1) / k, float(k - 1), "kernels"
    if k == 1:
        return _square(rows) / (s - 1) / s, float(s - 1), "seeds"
    rest = _square(table[i][j] - mean - rows[i] - columns[j] for i in range(s) for j in range(k))
    ms_seeds, ms_kernels = k * _square(rows) / (s - 1), s * _square(columns) / (k - 1)
    ms_rest = rest / ((s - 1) * (k - 1))
    total = ms_seeds + ms_kernels - ms_rest
    if ms_seeds >= max(total, ms_kernels):
        return ms_seeds / (s * k), float(s - 1), "seeds and kernels"
    if ms_kernels >= total:
        return ms_kernels / (s * k), float(k - 1), "seeds and kernels"
    spread = ms_seeds**2 / (s - 1) + ms_kernels**2 / (k - 1) + ms_rest**2 / ((s - 1) * (k - 1))
    return total / (s * k), total**2 / spread, "seeds and kernels"


def _square(values: Iterable[float]) -> float:
    return math.fsum(v * v for v in values)
