"""Regression: the head is fitted to returns by minibatch AdamW, the same way every time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from iterpo.domain import derive
from iterpo.errors import TrainingError
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.qfunction import ValueHead

__all__ = ["Record", "one_epoch", "regress", "seeded", "shuffled"]

Record = Callable[[int, Mapping[str, float]], None]
"""Takes an epoch (from 1) and named values."""


def regress(
    features: Tensor,
    returns: Tensor,
    config: QConfig,
    on_epoch: Callable[[int, float, ValueHead], None] | None = None,
    weights: Tensor | None = None,
) -> ValueHead:
    """Fit a fresh head to min mean w_t (Q(s_t, a_t) - G_t)^2 (Observation 3.5, Monte Carlo).

    Args:
        features: (n, d) fp32, all finite; the last columns are those of ``config.numbers``.
        returns: (n,) fp32.
        config: Head, optimiser and seed; equal seeds and rows give equal bytes.
        on_epoch: Called with the epoch, its mean squared error (dropout on, in the squared unit of
            the returns) and the head in evaluation mode.
        weights: (n,) fp32, 0 or more, of which only the ratios matter; None: all equal.

    Raises:
        TrainingError: if the loss stops being finite.
    """
    with seeded(derive(config.seed, "q-head")):
        head = ValueHead(features.shape[1], config.hidden, config.heads, config.dropout)
        if config.shuffle_returns:
            returns = shuffled(returns, config.seed)
        head.set_scales(features, returns, config, weights)
        targets = (returns - head.return_mean) / head.return_scale
        # A mean of 1 keeps the meaning of the learning rate, and that of the epoch's error.
        weights = None if weights is None else weights / weights.mean()
        optimizer = torch.optim.AdamW(
            head.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=True,  # half the time of a fit
        )
        for epoch in range(1, config.epochs + 1):
            data = (targets, weights)
            loss = one_epoch(head, optimizer, features.__getitem__, data, config.batch_size)
            if not math.isfinite(loss):
                raise TrainingError(
                    f"fitting Q diverged in epoch {epoch} (loss {loss}); lower learning_rate "
                    f"(now {config.learning_rate})"
                )
            head.eval()
            if on_epoch is not None:
                on_epoch(epoch, loss * float(head.return_scale) ** 2, head)
    return head.eval()


def one_epoch(
    head: ValueHead,
    optimizer: torch.optim.Optimizer,
    read: Callable[[Tensor], Tensor],
    data: tuple[Tensor, Tensor | None],
    batch_size: int,
    slices: Callable[[Tensor], Sequence[Tensor]] = lambda rows: (rows,),
) -> float:
    """One pass over n rows in random order; returns the mean squared error, dropout on.

    Args:
        head: What is trained; left in training mode.
        optimizer: Of all that is trained.
        read: Features (b, d) of the rows with these indices.
        data: Scaled targets (n,), and weights (n,) of mean 1 or None.
        batch_size: Rows of a step.
        slices: Parts of a step's row indices that are read one after the other, to save memory;
            their gradients are summed.
    """
    targets, weights = data
    head.train()
    total = 0.0
    order = torch.randperm(len(targets))
    for start in range(0, len(order), batch_size):
        step = order[start : start + batch_size]
        optimizer.zero_grad(set_to_none=True)
        for rows in slices(step):
            errors = head.normalised(read(rows)) - targets[rows, None]  # (b, heads)
            squares = errors.square()
            if weights is not None:
                squares = squares * weights[rows, None]
            loss = squares.mean(dim=0) * (len(rows) / len(step))
            torch.autograd.backward(loss.sum())  # the sum trains each head as if it were alone
            total += float(loss.mean().detach()) * len(step)
        optimizer.step()
    return total / len(targets)


def shuffled(returns: Tensor, seed: int) -> Tensor:
    """The negative control: the same returns, each on a row drawn at random."""
    generator = torch.Generator().manual_seed(derive(seed, "shuffle-returns"))
    return returns[torch.randperm(len(returns), generator=generator)]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the CPU generator (initial weights, order, dropout) and give it back as it was."""
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)
