"""One sampling step: logits become a drawn token and its log-probability.

The order is penalty, temperature, top-k, nucleus, as in transformers; the draw is the inverse of
the cumulative distribution at a given uniform number. The nucleus is found exactly without
sorting the vocabulary: the best 64, then 1024, then all are tried until they hold its mass. In a
large vocabulary the draw finds a block first, then the token in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from iterpo.domain import Sampling
from iterpo.errors import ModelError

__all__ = ["Draw", "RepetitionState", "draw"]

_TRIES = (64, 1024)
_BLOCK = 128
_LARGE = 4096


@dataclass(frozen=True, slots=True)
class Draw:
    """What a step drew."""

    ids: Tensor
    """Token ids (r,)."""
    logprobs: Tensor
    """Natural log-probabilities (r,), float32, under the distribution drawn from."""


class RepetitionState:
    """Which tokens each request has seen; costs nothing at the neutral penalty of 1."""

    def __init__(
        self, sampling: Sampling, prompts: Sequence[Sequence[int]], logits: Tensor
    ) -> None:
        self.penalty = sampling.repetition_penalty
        if self.penalty == 1.0:
            return
        self.seen = torch.zeros_like(logits, dtype=torch.bool)  # (r, V)
        for row, prompt in enumerate(prompts):
            self.seen[row, torch.tensor(list(prompt), device=logits.device)] = True

    def apply(self, logits: Tensor, rows: Sequence[int]) -> Tensor:
        """Logits (r, V) of the running requests ``rows``, penalised."""
        if self.penalty == 1.0:
            return logits
        changed = torch.where(logits > 0, logits / self.penalty, logits * self.penalty)
        return torch.where(self.seen[list(rows)], changed, logits)

    def saw(self, rows: Sequence[int], ids: Tensor) -> None:
        """Note the tokens (r,) just drawn."""
        if self.penalty != 1.0:
            self.seen[torch.tensor(list(rows), device=ids.device), ids] = True


def draw(logits: Tensor, sampling: Sampling, uniforms: npt.NDArray[np.float64]) -> Draw:
    """Draw one token per row.

    Args:
        logits: Penalised logits (r, V), float32.
        sampling: Temperature, top-k and nucleus.
        uniforms: One number in [0, 1) per row (r,).

    Raises:
        ModelError: if the logits are not finite.
    """
    if not bool(torch.isfinite(logits.amax(-1)).all()):
        raise ModelError(
            "the model's logits are not finite: its weights are broken or overflow in this dtype; "
            "try dtype=float32, and check the last training"
        )
    if sampling.temperature == 0:
        ids = logits.argmax(-1)
        return Draw(ids, torch.zeros_like(ids, dtype=torch.float32))  # a sure thing: log 1
    scaled = logits / sampling.temperature
    u = torch.from_numpy(np.ascontiguousarray(uniforms)).to(logits.device)
    if not (sampling.top_p < 1 or 0 < sampling.top_k < logits.shape[-1]):
        return _drawn(scaled, None, u)
    ids = torch.empty_like(u, dtype=torch.long)
    logprobs = torch.empty_like(u, dtype=torch.float32)
    for rows, kept, candidates in _nuclei(scaled, sampling):
        found = _drawn(kept, candidates, u[rows])
        ids[rows], logprobs[rows] = found.ids, found.logprobs
    return Draw(ids, logprobs)


def _drawn(kept: Tensor, ids: Tensor | None, u: Tensor) -> Draw:
    """Draw from the softmax of ``kept`` (r, c), whose columns are the tokens ``ids`` (r, c)."""
    total = torch.logsumexp(kept, -1, keepdim=True)
    place = _inverse_cdf((kept - total).exp_(), u)
    logprobs = kept.gather(-1, place) - total
    chosen = place if ids is None else ids.gather(-1, place)
    return Draw(chosen[:, 0], logprobs[:, 0])


def _nuclei(scaled: Tensor, sampling: Sampling) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Rows (k,), their kept logits (k, c), and the tokens that these belong to (k, c).

    Most rows need few candidates; the others are tried again with more, by themselves.
    """
    size = scaled.shape[-1]
    rows = torch.arange(len(scaled), device=scaled.device)
    if 0 < sampling.top_k < size:
        best, ids = scaled.topk(sampling.top_k)
        yield rows, *_nucleus(best, ids, torch.logsumexp(best, -1, keepdim=True), sampling.top_p)
        return
    total = torch.logsumexp(scaled, -1, keepdim=True)
    for count in (*(c for c in _TRIES if c < size), size):
        best, ids = scaled.topk(count)
        enough = (best - total).exp().sum(-1) >= sampling.top_p
        if count == size or bool(enough.all()):
            yield rows, *_nucleus(best, ids, total, sampling.top_p)
            return
        yield rows[enough], *_nucleus(best[enough], ids[enough], total[enough], sampling.top_p)
        rows, scaled, total = rows[~enough], scaled[~enough], total[~enough]


def _nucleus(best: Tensor, ids: Tensor, total: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Kept logits (r, c), -inf outside the nucleus, and their ids, in order of the vocabulary."""
    # A token stays while the mass before it is below top_p: the smallest set that reaches it.
    mass = (best - total).exp().double().cumsum(-1)
    before = torch.cat([mass.new_zeros(mass.shape[0], 1), mass[:, :-1]], dim=-1)
    best = best.masked_fill(before >= top_p, -torch.inf)
    # In vocabulary order, noise that swaps two near-equal logits can't swap the drawn token.
    ids, order = ids.sort(dim=-1)
    return best.gather(-1, order), ids


def _inverse_cdf(mass: Tensor, u: Tensor) -> Tensor:
    """Index (r, 1) at which the cumulative probability ``mass`` (r, c) first exceeds ``u`` (r,)."""
    if mass.shape[1] < _LARGE:
        cdf = mass.double().cumsum(-1)
        return _search(cdf, u[:, None] * cdf[:, -1:])
    blocks = -(-mass.shape[1] // _BLOCK)
    mass = torch.nn.functional.pad(mass, (0, blocks * _BLOCK - mass.shape[1]))
    mass = mass.view(len(mass), blocks, _BLOCK)
    cdf = mass.sum(-1).double().cumsum(-1)
    target = u[:, None] * cdf[:, -1:]
    block = _search(cdf, target)
    before = torch.where(block > 0, cdf.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = mass.gather(1, block[..., None].expand(-1, -1, _BLOCK))[:, 0].double().cumsum(-1)
    return block * _BLOCK + _search(inside, target - before)


def _search(cdf: Tensor, target: Tensor) -> Tensor:
    """First index (r, 1) at which ``cdf`` (r, n) exceeds ``target`` (r, 1)."""
    place = torch.searchsorted(cdf, target, right=True)
    # Rounding may put the target on the very end: the last index with mass is meant.
    last = torch.searchsorted(cdf, cdf[:, -1:].contiguous())
    return torch.minimum(place, last)
