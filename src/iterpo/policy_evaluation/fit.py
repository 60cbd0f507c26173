"""fit_q: Q^pi by regression on targets from logged conversations (Observation 3.5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import NamedTuple

import torch
from torch import Tensor

from iterpo.domain import Conversation, Decision
from iterpo.errors import BatchError, ConfigError
from iterpo.models.backbone import Backbone
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.earlier import (
    EarlierRound,
    Weighed,
    weigh_explored,
    weigh_rounds,
)
from iterpo.policy_evaluation.features import Extracted, extract, token_rows
from iterpo.policy_evaluation.health import Fit, Part, QHealth, fit_quality
from iterpo.policy_evaluation.monte_carlo import TrainingRows, training_rows
from iterpo.policy_evaluation.numbers import numbers
from iterpo.policy_evaluation.qfunction import QFunction, ValueHead
from iterpo.policy_evaluation.regression import Record, regress
from iterpo.policy_evaluation.split import hold_out, unrelated
from iterpo.policy_evaluation.temporal_difference import (
    Ahead,
    Pairs,
    Respond,
    check_respond,
    iterate,
    pairs_ahead,
)
from iterpo.policy_evaluation.tuned import tune

__all__ = ["FitResult", "fit_q"]


class FitResult(NamedTuple):
    """What ``fit_q`` returns."""

    q: QFunction
    """The fitted Q, a ``Reward``."""
    report: QHealth
    """How far to trust it."""


@dataclass(frozen=True, slots=True)
class _Data:
    """All rows, the round's own first."""

    decisions: tuple[Decision, ...]
    features: Tensor
    """Of the frozen backbone."""
    returns: Tensor
    weights: Tensor | None
    """None if all rows are the round's own."""
    usable: Tensor
    """Rows with features, (n,) bool."""
    train: Tensor
    """The round's own rows that the reported head is fitted on, (n,) bool."""
    heldout: Tensor
    """The round's own rows that it is reported on, (n,) bool."""
    pooled: Tensor
    """Other policies' rows that tell nothing of those, (n,) bool."""
    ahead: Ahead | None
    """What all n rows lead to; None for Monte Carlo."""


def fit_q(
    backbone: Backbone,
    conversations: Sequence[Conversation],
    config: QConfig | None = None,
    record: Record | None = None,
    earlier: Sequence[EarlierRound] = (),
    explored: EarlierRound | None = None,
    respond: Respond | None = None,
) -> FitResult:
    """Fit Q from scratch to logged conversations, by ``config.estimator``.

    Features are computed once and kept for all epochs; with ``tune`` a critic's adapter and the
    head are then trained on, through a copy of the backbone. The report comes from conversations
    that the reported Q has not seen; with ``refit_on_all`` the returned one is then fitted on all.

    Args:
        backbone: Frozen policy of the round.
        conversations: Logged under that policy; text-only logs will do, log-probs are not needed.
            All are fitted on: what is for a judge is taken out before (``split.set_aside``).
        config: Settings; None for the defaults.
        record: Gets per-epoch values: ``report/mse``, ``report/heldout_mse``, then, counted on,
            ``final/mse`` of the refit.
        earlier: Logs of other policies to be fitted on too, each row by its importance weight.
        explored: For ``off_policy: weight``, what personas said, with the policy's ratios.
        respond: For the estimator ``fitted_q``, the policy.

    Raises:
        ConfigError: if the settings need one of the last two and it is not given.
        BatchError: if nothing can be learned: an empty batch, no scored conversation, no agent
            action, equal returns everywhere, or explored conversations (see ``off_policy``).
        ContextOverflowError: if a row does not fit the backbone's context.
    """
    config = config or QConfig()
    check_respond(config, respond)
    rows = training_rows(conversations, config)
    others = _others(conversations, earlier, explored, config)
    every = (*rows.decisions, *others.decisions)
    pairs = _pairs(rows, others, config, respond)
    extracted, ahead = _extract_all(backbone, every, pairs, config)
    data = _data(rows, others, extracted.features, ahead, config)
    head, targets = _fit(data, config, record)
    told = (config, record, "report", 0)
    critic = _tuned(backbone, head, data, (data.train | data.pooled, targets), told)
    if config.tune is not None:
        extracted = _extract(critic, every, config)
    report = _report(rows, extracted, data, (head, config))
    n = len(others.rounds) - len(earlier)
    report = replace(
        report,
        policy=backbone.policy.id,
        pooled=others.rounds[n:],
        corrected=others.rounds[:n],
        estimator=config.estimator,
    )
    if config.refit_on_all and data.heldout.any():
        head, targets = _refit(data, config, record)
        told = (config, record, "final", config.passes)
        critic = _tuned(backbone, head, data, (data.usable, targets), told)
    return FitResult(QFunction(critic, head, config, report), report)


def _others(
    conversations: Sequence[Conversation],
    earlier: Sequence[EarlierRound],
    explored: EarlierRound | None,
    config: QConfig,
) -> Weighed:
    """Rows that are fitted on, but not reported on: explored ones first, then other policies'."""
    mine = Weighed()
    if any(c.explored for c in conversations):
        if config.off_policy == "weight" and explored is None:
            raise ConfigError(
                "off_policy: given 'weight' without the policy's ratios; accepted: drop, or "
                "`explored` (iterpo.fit_q and runs bring their own)"
            )
        mine = weigh_explored(conversations, explored, config)
    theirs = weigh_rounds(earlier, config)
    return Weighed(
        mine.decisions + theirs.decisions,
        mine.weights + theirs.weights,
        mine.conversations + theirs.conversations,
        mine.rounds + theirs.rounds,
    )


def _pairs(
    rows: TrainingRows, others: Weighed, config: QConfig, respond: Respond | None
) -> Pairs | None:
    if not rows.decisions and not others.decisions:
        raise BatchError(
            f"all {rows.left_out['explored_rows']} agent turns were explored or came before one "
            "that was, and none can be corrected for "
            f"({'; '.join(r.refused for r in others.rounds if r.refused) or 'no ratios'})"
        )
    if config.estimator == "monte_carlo":
        return None
    sources = [rows.conversations[i] for i in rows.sources]
    every = (*rows.decisions, *others.decisions)
    return pairs_ahead(every, (*sources, *others.conversations), config, respond)


def _extract_all(
    backbone: Backbone, every: Sequence[Decision], pairs: Pairs | None, config: QConfig
) -> tuple[Extracted, Ahead | None]:
    """In one pass: what follows a row is mostly a row itself, or shares its prompt with one."""
    if pairs is None:
        return _extract(backbone, every, config), None
    found = extract(
        backbone,
        [d.state for d in every] + list(pairs.states),
        [d.response for d in every] + list(pairs.responses),
        pooling=config.pooling,
        numbers=config.numbers,
        max_batch_tokens=config.max_batch_tokens,
    )
    n = len(every)
    ahead = Ahead.of(pairs, found.features[n:])
    return replace(found, features=found.features[:n]), ahead


def _extract(reader: Backbone, rows: Sequence[Decision], config: QConfig) -> Extracted:
    return extract(
        reader,
        [d.state for d in rows],
        [d.response for d in rows],
        pooling=config.pooling,
        numbers=config.numbers,
        max_batch_tokens=config.max_batch_tokens,
    )


def _data(
    rows: TrainingRows, pooled: Weighed, features: Tensor, ahead: Ahead | None, config: QConfig
) -> _Data:
    n, more = len(rows.decisions), len(pooled.decisions)
    every = (*rows.decisions, *pooled.decisions)
    usable = torch.isfinite(features).all(dim=1)
    if not usable[: n or more].any() or features.shape[1] == 0:
        raise BatchError(
            f"none of the {n or more} agent turns has usable features: responses without "
            "tokens, or hidden states that overflow; try dtype bf16 or fp32 for the backbone"
        )
    if ahead is not None:
        usable = usable & ahead.complete
    held = hold_out(rows.conversations, config.holdout_fraction, config.split_by, config.seed)
    own = usable & (torch.arange(n + more) < n)
    heldout = usable & torch.tensor([i in held for i in rows.sources] + [False] * more)
    if not (own & ~heldout).any():
        heldout, held = torch.zeros_like(usable), frozenset()
    told_of = [c for i, c in enumerate(rows.conversations) if i in held]
    apart = unrelated(pooled.conversations, told_of, config.split_by)
    return _Data(
        every,
        features,
        torch.tensor([d.ret for d in every], dtype=torch.float32),
        torch.tensor([1.0] * n + list(pooled.weights), dtype=torch.float32) if more else None,
        usable,
        own & ~heldout,
        heldout,
        usable & torch.tensor([False] * n + list(apart)),
        ahead,
    )


def _fit(data: _Data, config: QConfig, record: Record | None) -> tuple[ValueHead, Tensor]:
    heldout = data.heldout

    def on_epoch(epoch: int, mse: float, head: ValueHead) -> None:
        values = {"report/mse": mse}
        if heldout.any():
            with torch.no_grad():
                errors = head(data.features[heldout]) - data.returns[heldout]
            values["report/heldout_mse"] = float(errors.square().mean())
        if record is not None:
            record(epoch, values)

    return _regress(data, data.train | data.pooled, config, on_epoch)


def _refit(data: _Data, config: QConfig, record: Record | None) -> tuple[ValueHead, Tensor]:
    def on_epoch(epoch: int, mse: float, _: ValueHead) -> None:
        if record is not None:
            record(config.passes + epoch, {"final/mse": mse})  # after the epochs of the report

    return _regress(data, data.usable, config, on_epoch)


def _tuned(
    backbone: Backbone,
    head: ValueHead,
    data: _Data,
    fitted_on: tuple[Tensor, Tensor],
    told: tuple[QConfig, Record | None, str, int],
) -> Backbone:
    """What ``head`` reads in the end.

    ``fitted_on`` holds its rows and their targets, ``told`` the settings and where progress goes.
    """
    (mask, targets), (config, record, name, before) = fitted_on, told
    if config.tune is None:
        return backbone
    heads = config.epochs * config.regressions

    def on_epoch(epoch: int, mse: float) -> None:
        if record is not None:
            record(before + heads + epoch, {f"{name}/mse": mse})

    rows = list(compress(data.decisions, mask.tolist()))
    tokens = token_rows(backbone, [d.state for d in rows], [d.response for d in rows])
    said = numbers([d.state for d in rows], [d.response for d in rows], config.numbers)
    weights = None if data.weights is None else data.weights[mask]
    return tune(backbone, head, (tokens, said), (targets, weights), config, on_epoch)


def _regress(
    data: _Data, mask: Tensor, config: QConfig, on_epoch: Callable[[int, float, ValueHead], None]
) -> tuple[ValueHead, Tensor]:
    """The head, and what it was fitted to."""
    weights = None if data.weights is None else data.weights[mask]
    features, returns = data.features[mask], data.returns[mask]
    if data.ahead is None:
        return regress(features, returns, config, on_epoch, weights), returns
    return iterate(features, returns, data.ahead.where(mask), config, on_epoch, weights)


def _report(
    rows: TrainingRows,
    extracted: Extracted,
    data: _Data,
    fitted: tuple[ValueHead, QConfig],
) -> QHealth:
    (head, config), train, heldout = fitted, data.train, data.heldout
    own = [d.state.t for d in rows.decisions]
    turns = torch.tensor(own + [0] * (len(train) - len(own)))

    def quality(mask: Tensor) -> Fit:
        with torch.no_grad():
            scores = head(extracted.features[mask])
        return fit_quality(scores.numpy(), data.returns[mask].numpy(), turns[mask].tolist())

    spoken = int(train.sum()) + int(heldout.sum())
    blank = ~torch.isfinite(data.features).all(dim=1)
    left_out = {**rows.left_out, "rows_without_features": int(blank.sum())}
    if data.ahead is not None:
        left_out["rows_without_next"] = int((~data.usable & ~blank).sum())
    return QHealth(
        train=_part(rows, train),
        heldout=_part(rows, heldout),
        fit=quality(heldout),
        train_fit=quality(train),
        refit_on_all=config.refit_on_all and bool(heldout.any()),
        left_out=left_out,
        unrecorded=sum(c.explored and c.exploration is None for c in rows.conversations),
        policies=dict(Counter(c.policy for c in rows.conversations)),
        rows=spoken,
        forwards=extracted.forwards,
        forwards_saved=extracted.rows - extracted.forwards,
        tokens=extracted.tokens,
        dtypes={
            "hidden": extracted.hidden_dtype,
            "features": str(data.features.dtype).removeprefix("torch."),
            "head": str(head.inner.weight.dtype).removeprefix("torch."),
        },
        shuffled=config.shuffle_returns,
    )


def _part(rows: TrainingRows, mask: Tensor) -> Part:
    own = mask[: len(rows.sources)].tolist()
    sources = {i for i, inside in zip(rows.sources, own, strict=True) if inside}
    kernels = {rows.conversations[i].kernel_id for i in sources}
    return Part(int(mask.sum()), len(sources), len(kernels))
