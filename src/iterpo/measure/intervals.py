"""Interval: a mean with a standard error that respects clusters (conversations of one kernel).

Conversations of one scenario resemble each other, so their number says little about precision;
the number of scenarios does. All intervals here stay the same when every sample is duplicated.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

__all__ = [
    "Interval",
    "mean_interval",
    "paired_difference",
    "proportion_interval",
    "t_quantile",
    "t_tail",
]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, its standard error and a two-sided confidence interval."""

    mean: float
    """Estimate."""
    se: float
    """Standard error clustered by kernel; NaN with a single cluster, which shows no spread."""
    low: float
    """Lower end; minus infinity where ``se`` is NaN."""
    high: float
    """Upper end; infinity where ``se`` is NaN."""
    n: int
    """Samples."""
    clusters: int
    """Different kernels among them."""

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {'?' if math.isnan(self.se) else f'{self.se:.3f}'}"

    def to_dict(self) -> dict[str, float | int | None]:
        """JSON values only: None instead of NaN and infinities."""
        ends = {"mean": self.mean, "se": self.se, "low": self.low, "high": self.high}
        finite = {k: v if math.isfinite(v) else None for k, v in ends.items()}
        return {**finite, "n": self.n, "clusters": self.clusters}


def mean_interval(
    values: Sequence[float], clusters: Sequence[str], confidence: float = 0.95
) -> Interval:
    """Mean over samples with a cluster-robust standard error and Student's t on clusters - 1.

    A sample without any spread (all values equal) has a standard error of 0; for proportions,
    where that is common and misleading, use ``proportion_interval``.

    Args:
        values: n finite numbers, n >= 1.
        clusters: n cluster names.
        confidence: Coverage of the interval.

    >>> once = mean_interval([0.0, 1.0, 1.0], ["a", "b", "c"])
    >>> twice = mean_interval([0.0, 1.0, 1.0] * 2, ["a", "b", "c"] * 2)
    >>> str(once) == str(twice), once.clusters, twice.n
    (True, 3, 6)
    """
    mean, se, groups = _clustered(values, clusters)
    half = _critical(groups, confidence) * se if groups > 1 else math.inf
    return Interval(mean, se, mean - half, mean + half, len(values), groups)


def proportion_interval(
    hits: Sequence[bool], clusters: Sequence[str], confidence: float = 0.95
) -> Interval:
    """Wilson's interval for a share, with the sample size that the clusters are worth.

    That size is p (1 - p) / se^2 with the clustered se, lessened for few clusters by (z / t)^2; it
    is the number of clusters where all clusters agree, so 0 of 20 is never certain.

    >>> none = proportion_interval([False] * 20, [str(i) for i in range(20)])
    >>> none.mean, none.low, round(none.high, 3), none.se > 0
    (0.0, 0.0, 0.161, True)
    """
    mean, se, groups = _clustered([float(hit) for hit in hits], clusters)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    size = float(groups)
    if groups > 1 and se > 1e-12:
        size = mean * (1 - mean) / se**2 * (z / _critical(groups, confidence)) ** 2
    centre = (mean + z**2 / (2 * size)) / (1 + z**2 / size)
    half = z / (1 + z**2 / size) * math.sqrt(mean * (1 - mean) / size + (z / (2 * size)) ** 2)
    low = 0.0 if mean == 0 else max(0.0, centre - half)
    high = 1.0 if mean == 1 else min(1.0, centre + half)
    if not se > 1e-12:  # no spread between clusters, or a single one: what the interval implies
        se = (high - low) / (2 * z)
    return Interval(mean, se, low, high, len(hits), groups)


def paired_difference(
    new: tuple[Sequence[float], Sequence[str]],
    old: tuple[Sequence[float], Sequence[str]],
    confidence: float = 0.95,
) -> Interval | None:
    """Mean over shared kernels of (mean of new - mean of old), each kernel weighing the same.

    Args:
        new: Values and their kernels.
        old: Values and their kernels.
        confidence: Coverage of the interval.

    Returns:
        The interval, whose ``n`` counts the samples of the shared kernels on both sides; None if
        no kernel is shared.

    >>> diff = paired_difference(([2.0, 5.0], ["a", "b"]), ([1.0, 4.0], ["a", "b"]))
    >>> diff.mean, diff.se
    (1.0, 0.0)
    """
    ours, theirs = _by_cluster(*new), _by_cluster(*old)
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        return None
    gaps = [
        math.fsum(ours[k]) / len(ours[k]) - math.fsum(theirs[k]) / len(theirs[k]) for k in shared
    ]
    found = mean_interval(gaps, shared, confidence)
    n = sum(len(ours[k]) + len(theirs[k]) for k in shared)
    return Interval(found.mean, found.se, found.low, found.high, n, found.clusters)


def t_quantile(p: float, df: int) -> float:
    """Quantile of Student's t for whole degrees of freedom, by bisection on its exact CDF.

    >>> [round(t_quantile(0.975, df), 3) for df in (1, 2, 10)]
    [12.706, 4.303, 2.228]
    """
    if df > 300:  # differs from the normal's by less than 0.3%
        return NormalDist().inv_cdf(p)
    if p < 0.5:
        return -t_quantile(1 - p, df)
    low, high = 0.0, 1.0
    while _central_mass(high, df) < 2 * p - 1:
        low, high = high, high * 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _central_mass(middle, df) < 2 * p - 1 else (low, middle)
    return (low + high) / 2


def t_tail(t: float, df: int) -> float:
    """P(|T| >= |t|) of Student's t for whole degrees of freedom: a two-sided p-value.

    >>> round(t_tail(2.228, 10), 3), round(t_tail(-1.96, 1000), 3)
    (0.05, 0.05)
    """
    if df > 300:  # as in ``t_quantile``
        return math.erfc(abs(t) / math.sqrt(2))
    return max(0.0, 1.0 - _central_mass(abs(t), df))


def _central_mass(t: float, df: int) -> float:
    """P(|T| <= t) by the finite trigonometric series for whole degrees of freedom."""
    angle = math.atan(t / math.sqrt(df))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = df % 2 == 1
    term = cosine if odd else 1.0
    total = term if df > 1 else 0.0
    for k in range(3 if odd else 2, df - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _critical(clusters: int, confidence: float) -> float:
    return t_quantile(0.5 + confidence / 2, clusters - 1)


def _clustered(values: Sequence[float], clusters: Sequence[str]) -> tuple[float, float, int]:
    """Mean, cluster-robust standard error (NaN for one cluster) and number of clusters."""
    if not values:
        raise ValueError("an interval needs at least one value; none was given")
    if not all(math.isfinite(v) for v in values):
        raise ValueError("an interval needs finite values; leave out what has none and count it")
    n, mean = len(values), math.fsum(values) / len(values)
    groups = _by_cluster(values, clusters)
    count = len(groups)
    if count < 2:
        return mean, math.nan, count
    # Sums of deviations within a cluster: what its conversations share does not average out.
    sums = [math.fsum(v - mean for v in group) for group in groups.values()]
    return mean, math.sqrt(math.fsum(s * s for s in sums) * count / (count - 1)) / n, count


def _by_cluster(values: Sequence[float], clusters: Sequence[str]) -> dict[str, list[float]]:
    groups: dict[str, list[float]] = defaultdict(list)
    for value, cluster in zip(values, clusters, strict=True):
        groups[cluster].append(value)
    return groups
