"""Judge: a second Q, on conversations set aside, that knows how far it may be wrong.

One fit says nothing of its own error: had other conversations been set aside, it would say
something else. So the same fit is made again several times with every kernel's conversations
weighed at random (the Bayesian bootstrap), from other initial weights. Features are read once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import stdev

import numpy as np
import torch
from torch import Tensor

from iterpo.domain import Conversation, Decision, State, derive
from iterpo.errors import BatchError
from iterpo.measure.correlation import correlation_interval
from iterpo.measure.intervals import Interval, mean_interval, t_quantile
from iterpo.models.backbone import Backbone
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.features import features
from iterpo.policy_evaluation.monte_carlo import training_rows
from iterpo.policy_evaluation.qfunction import QFunction, ValueHead
from iterpo.policy_evaluation.regression import regress

__all__ = ["REFITS", "Judge", "fit_heads", "fit_judge", "mean_gain"]

REFITS = 16
"""Fits to reweighed kernels; their spread is known to 18%, which Student's t accounts for."""


@dataclass(frozen=True, slots=True, eq=False)
class Judge:
    """A fit and what it could have been."""

    q: QFunction
    """Fitted to all conversations set aside, each weighing the same."""
    refits: tuple[QFunction, ...]
    """The same with kernels weighed at random."""
    kernels: int
    """Kernels among those conversations."""

    def gain(
        self, states: Sequence[State], read: Sequence[Tensor], confidence: float
    ) -> Interval | None:
        """``mean_gain``, and as sure as the refits agree: another log would make another judge."""
        found = mean_gain(self.q, states, read, confidence)
        others = [mean_gain(q, states, read, confidence) for q in self.refits]
        if found is None:
            return None
        n = self.kernels
        degrees = min(found.clusters, n, len(others)) - 1
        if degrees < 1:
            return replace(found, se=math.nan, low=-math.inf, high=math.inf)
        # Random weights vary a little less than kernels drawn anew would.
        own = stdev(i.mean for i in others if i) * math.sqrt((n + 1) / (n - 1))
        se = math.hypot(found.se, own)
        half = t_quantile(0.5 + confidence / 2, degrees) * se
        return replace(found, se=se, low=found.mean - half, high=found.mean + half)

    def correlation(
        self, rows: Sequence[Decision], read: Tensor, confidence: float
    ) -> Interval | None:
        """With the returns of rows that it never saw, by their features; None if none vary."""
        scored = zip(self.q.scores(read).tolist(), rows, strict=True)
        known = [(score, row) for score, row in scored if math.isfinite(score)]
        return correlation_interval(
            [score for score, _ in known],
            [row.ret for _, row in known],
            [row.state.kernel_id for _, row in known],
            confidence,
        )


def fit_judge(backbone: Backbone, conversations: Sequence[Conversation], config: QConfig) -> Judge:
    """Fit a judge by true returns, on the features of a frozen backbone.

    Args:
        backbone: The policy that spoke. A critic is not tuned for the judge: its features would
            have to be learnt anew with every refit.
        conversations: Set aside; neither Q nor the policy ever saw their returns.
        config: Settings of the Q that was trained on.

    Raises:
        BatchError: if they can't be learnt from; see ``fit_q``.
    """
    config = replace(
        config,
        estimator="monte_carlo",  # true returns, not the errors of another Q
        judge_fraction=0.0,
        pool_rounds=0,
        holdout_fraction=0.0,  # its fit is measured on the conversations of the other Q
        pessimism=0.0,
        shuffle_returns=False,  # the control must be judged by true returns
        tune=None,
        seed=derive(config.seed, "judge") % 2**31,
    )
    rows = training_rows(conversations, config)
    read = features(
        backbone,
        [d.state for d in rows.decisions],
        [d.response for d in rows.decisions],
        pooling=config.pooling,
        numbers=config.numbers,
        max_batch_tokens=config.max_batch_tokens,
    )
    usable = torch.isfinite(read).all(dim=1)
    if read.shape[1] == 0 or not usable.any():
        raise BatchError("no agent turn that was set aside has usable features")
    kernels = [d.state.kernel_id for d, known in zip(rows.decisions, usable, strict=True) if known]
    returns = torch.tensor([d.ret for d in rows.decisions], dtype=torch.float32)
    heads = fit_heads(read[usable], returns[usable], kernels, config)
    q, *refits = (QFunction(backbone, head, config) for head in heads)
    return Judge(q, tuple(refits), len(set(kernels)))


def fit_heads(
    read: Tensor, returns: Tensor, kernels: Sequence[str], config: QConfig
) -> list[ValueHead]:
    """The judge's head, then ``REFITS`` others; features (n, d), returns (n,), n kernels."""
    names = sorted(set(kernels))
    place = {name: i for i, name in enumerate(names)}
    index = [place[name] for name in kernels]
    heads = [regress(read, returns, config)]
    for b in range(REFITS):
        seed = derive(config.seed, "refit", b)
        drawn = np.random.default_rng(seed).exponential(size=len(names))
        weights = torch.tensor(drawn[index], dtype=torch.float32)
        heads.append(regress(read, returns, replace(config, seed=seed % 2**31), weights=weights))
    return heads


def mean_gain(
    q: QFunction, states: Sequence[State], read: Sequence[torch.Tensor], confidence: float
) -> Interval | None:
    """Mean over states of what q gives the new candidates less what it gives the old ones.

    Args:
        q: Whom to ask.
        states: One for each candidate, n in all.
        read: Features of the new candidates (n, d), then of the old ones.
        confidence: Coverage of the interval, which is clustered by kernel.
    """
    gaps = (q.scores(read[0]) - q.scores(read[1])).tolist()
    by_state: dict[tuple[str, int], list[float]] = {}
    kernels: dict[tuple[str, int], str] = {}
    for state, gap in zip(states, gaps, strict=True):
        if math.isfinite(gap):
            by_state.setdefault((state.conversation_id, state.t), []).append(gap)
            kernels[state.conversation_id, state.t] = state.kernel_id
    if not by_state:
        return None
    means = [math.fsum(values) / len(values) for values in by_state.values()]
    return mean_interval(means, [kernels[key] for key in by_state], confidence)
