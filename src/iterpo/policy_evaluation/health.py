"""QHealth: how far a fitted Q can be trusted, from conversations it was not fitted on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iterpo.domain import Decision, Reward
from iterpo.policy_evaluation.earlier import PooledRound

__all__ = ["Bin", "Fit", "Part", "QHealth", "TurnFit", "convergence", "fit_quality", "pearson"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Part:
    """Size of one side of the split."""

    rows: int = 0
    """(s_t, a_t, G_t) rows."""
    conversations: int = 0
    """Conversations that they come from."""
    kernels: int = 0
    """Scenarios that they come from."""


@dataclass(frozen=True, slots=True)
class Bin:
    """One bin of the reliability diagram."""

    lowest: float
    """Smallest prediction in it."""
    highest: float
    """Largest prediction in it."""
    n: int
    """Rows in it."""
    predicted: float
    """Mean prediction."""
    observed: float
    """Mean return."""


@dataclass(frozen=True, slots=True)
class TurnFit:
    """Fit at one agent turn."""

    t: int
    """Index of the agent action, from 1."""
    n: int
    """Rows."""
    mean_return: float
    """Mean of G_t."""
    mean_q: float
    """Mean prediction."""
    pearson: float | None
    """Correlation, None where undefined."""
    mse: float
    """Mean squared error."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Predictions against returns; None where too few or constant rows leave it undefined."""

    pearson: float | None = None
    """Linear correlation."""
    spearman: float | None = None
    """Rank correlation."""
    r2: float | None = None
    """1 - mse / variance; below 0 the mean return would predict better."""
    mse: float | None = None
    """Mean squared error."""
    variance: float | None = None
    """Variance of the returns: the error of predicting their mean."""
    slope: float | None = None
    """Of returns regressed on predictions; 1 is calibrated, below 1 overconfident."""
    intercept: float | None = None
    """Of the same regression; 0 is calibrated."""
    bins: tuple[Bin, ...] = ()
    """Reliability diagram, equally filled bins by prediction."""
    turns: tuple[TurnFit, ...] = ()
    """Fit by turn index."""


@dataclass(frozen=True, slots=True)
class QHealth:
    """Report of ``fit_q``: what was fitted on, and the fit on held-out conversations."""

    train: Part
    """What of the round's own log the reported head was fitted on."""
    heldout: Part
    """What the report is computed on."""
    fit: Fit
    """Fit on the held-out part."""
    train_fit: Fit
    """Fit on the part that was fitted on, for comparison."""
    refit_on_all: bool = False
    """Whether the returned head was fitted again on both parts after the report."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Conversations without a reward by ending, those ``without_action``, and single
    ``rows_without_features``; under exploration conversations that were ``explored`` throughout,
    and ``explored_rows``, whose return is not the policy's own (see ``corrected``). Estimators that
    look ahead add ``rows_without_next``: what follows has no features."""
    unrecorded: int = 0
    """Conversations with explored turns, but no record of what could have been explored."""
    policies: Mapping[str, int] = field(default_factory=dict)
    """Conversations by the policy that collected them; empty name: not recorded."""
    policy: str = ""
    """``PolicyRef.id`` of the backbone: whose Q this is."""
    rows: int = 0
    """Rows with features, both parts."""
    forwards: int = 0
    """Sequences that went through the backbone."""
    forwards_saved: int = 0
    """Sequences that chaining the turns of a conversation saved."""
    tokens: int = 0
    """Tokens that went through the backbone."""
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """``hidden`` (backbone), ``features`` and ``head``."""
    shuffled: bool = False
    """True for the negative control."""
    pooled: tuple[PooledRound, ...] = ()
    """Earlier rounds that were to be fitted on too. The fit is measured on the round's own rows."""
    estimator: str = "monte_carlo"
    """What Q was regressed on. The fit is against returns in any case."""
    corrected: tuple[PooledRound, ...] = ()
    """Rows among ``explored_rows`` that were fitted on all the same: as they are, and weighed."""

    def concerns(self) -> tuple[str, ...]:
        """Reasons to distrust this Q, in words; empty if none was found.

        Passing says little: in our first trials held-out fit did not tell good updates from bad.
        """
        out = []
        if self.shuffled:
            out.append("returns were shuffled (negative control): Q means nothing")
        strangers = sum(n for p, n in self.policies.items() if p and p != self.policy)
        if self.policy and strangers:
            out.append(
                f"{strangers} conversations were logged under other policies than {self.policy}: "
                "their returns are not its own"
            )
        if self.unrecorded:
            out.append(
                f"{self.unrecorded} conversations hold explored turns, but no record of the draw: "
                "the returns from the last one on are the policy's own only if nothing after it "
                "could have been explored"
            )
        out += [f"round {r.round} was not pooled: {r.refused}" for r in self.pooled if r.refused]
        out += [
            f"explored turns were not weighed: {r.refused}" for r in self.corrected if r.refused
        ]
        if not self.heldout.rows:
            out.append("nothing was held out, so the fit is unknown")
        elif self.fit.pearson is None:
            out.append("the held-out rows are too few or too alike to say anything")
        elif self.fit.pearson <= 0:
            out.append(f"held-out correlation is {self.fit.pearson:.2f}: Q knows nothing")
        if self.fit.r2 is not None and self.fit.r2 < 0:
            out.append(f"held-out R^2 is {self.fit.r2:.2f}: the mean return predicts better")
        return tuple(out)

    def to_dict(self) -> dict[str, Any]:
        """JSON values only (None instead of NaN), concerns included."""
        return {**asdict(self), "concerns": list(self.concerns())}


def fit_quality(
    predictions: ArrayLike, returns: ArrayLike, turns: Sequence[int], n_bins: int = 10
) -> Fit:
    """Compare predictions with returns.

    Args:
        predictions: (n,) scores.
        returns: (n,) Monte-Carlo returns.
        turns: n turn indices.
        n_bins: At most this many reliability bins, of five rows or more each.
    """
    q, g = np.asarray(predictions, dtype=np.float64), np.asarray(returns, dtype=np.float64)
    if not len(q):
        return Fit()
    mse, variance = float(np.mean((q - g) ** 2)), float(np.var(g))
    slope, intercept = _line(q, g)
    return Fit(
        pearson=pearson(q, g),
        spearman=pearson(_ranks(q), _ranks(g)),
        r2=1.0 - mse / variance if _varies(g) else None,
        mse=mse,
        variance=variance,
        slope=slope,
        intercept=intercept,
        bins=_bins(q, g, max(1, min(n_bins, len(q) // 5))),
        turns=tuple(_turn(t, q, g, np.asarray(turns)) for t in sorted(set(turns))),
    )


def convergence(q_new: Reward, q_old: Reward, rows: Sequence[Decision]) -> float | None:
    """Mean |Q_i - Q_{i-1}| over the same rows, relative to the spread of their returns.

    The predecessor's Algorithm 1 iterates until Q has converged; compare this with a tolerance.

    Returns:
        0 for equal functions; None if no row is scored by both; infinity if the functions differ
        where all returns are equal.
    """
    states, responses = [r.state for r in rows], [r.response for r in rows]
    pairs = zip(q_new(states, responses), q_old(states, responses), strict=True)
    gaps = [abs(a - b) for a, b in pairs if a is not None and b is not None]
    gaps = [gap for gap in gaps if math.isfinite(gap)]
    if not gaps:
        return None
    gap, spread = float(np.mean(gaps)), float(np.std([r.ret for r in rows]))
    if spread > 0:
        return gap / spread
    return 0.0 if gap == 0 else math.inf


def _varies(x: Array) -> bool:
    return len(x) > 1 and float(np.ptp(x)) > 1e-9 * max(1.0, float(np.max(np.abs(x))))


def pearson(x: Array, y: Array) -> float | None:
    """Correlation of two samples (n,); None where too few or constant values leave it undefined."""
    if len(x) < 3 or not _varies(x) or not _varies(y):
        return None
    return float(np.corrcoef(x, y)[0, 1])


def _ranks(x: Array) -> Array:
    """Ranks from 0, ties sharing their mean."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean: Array = last - (counts + 1) / 2.0
    ranks: Array = mean[inverse]
    return ranks


def _line(x: Array, y: Array) -> tuple[float | None, float | None]:
    if len(x) < 3 or not _varies(x):
        return None, None
    slope = float(np.mean((x - x.mean()) * (y - y.mean())) / np.var(x))
    return slope, float(y.mean() - slope * x.mean())


def _bins(q: Array, g: Array, n_bins: int) -> tuple[Bin, ...]:
    order = np.argsort(q, kind="stable")
    return tuple(
        Bin(
            float(q[part].min()),
            float(q[part].max()),
            len(part),
            float(q[part].mean()),
            float(g[part].mean()),
        )
        for part in np.array_split(order, n_bins)
    )


def _turn(t: int, q: Array, g: Array, turns: NDArray[np.int64]) -> TurnFit:
    q, g = q[turns == t], g[turns == t]
    return TurnFit(
        t,
        len(q),
        float(g.mean()),
        float(q.mean()),
        pearson(q, g),
        float(np.mean((q - g) ** 2)),
    )
