"""Batched sampling: an own decode loop in which every request has its own seed.

The checkpoint's generation defaults play no part: the only settings are those of
``domain.Sampling``. Identical prompts share one prefill; finished rows leave the batch. A request's
draws depend on its seed alone, so that its batch can change a response only through floating-point
noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from iterpo.domain import Sampling
from iterpo.errors import ContextOverflowError, ModelError
from iterpo.models.backbone import Backbone, inner
from iterpo.models.padding import pad
from iterpo.models.sampler import Draw, RepetitionState, draw
from iterpo.models.shared_prefix import cache_argument

__all__ = ["Generated", "check_context", "evaluating", "generate"]


@dataclass(frozen=True, slots=True)
class Generated:
    """One sampled response."""

    token_ids: tuple[int, ...]
    """Sampled ids; the last is a stop token if ``finish`` is ``stop``."""
    logprobs: tuple[float, ...]
    """Natural log-probability of each id under the distribution that it was drawn from."""
    finish: str
    """``stop`` or ``length``."""


def generate(
    backbone: Backbone,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    seeds: Sequence[int],
    *,
    max_batch_tokens: int = 65_536,
) -> list[Generated]:
    """Sample one response per prompt, with the adapter that is active on the model.

    Args:
        backbone: The policy.
        prompts: Rendered prompts (``ChatFormat.prompt_ids``); identical ones share a prefill.
        sampling: Settings, applied exactly and by this module alone.
        seeds: One seed per prompt, in [0, 2**63).
        max_batch_tokens: Bound of a batch: rows x (longest prompt + max_new_tokens).

    Raises:
        ContextOverflowError: if a prompt and its response do not fit the context; nothing has
            been run then, and nothing is ever truncated.
        ModelError: if the settings make no sense, or the model's logits are not finite.
    """
    _check(prompts, sampling, seeds)
    for i, prompt in enumerate(prompts):
        check_context(backbone, len(prompt), sampling, what=f"prompt {i}")
    results: list[Generated | None] = [None] * len(prompts)
    with evaluating(backbone.model):
        for rows in _batches(prompts, sampling.max_new_tokens, max_batch_tokens):
            batch = _Batch(backbone, sampling, [prompts[i] for i in rows], [seeds[i] for i in rows])
            for i, result in zip(rows, batch.run(), strict=True):
                results[i] = result
    return [r for r in results if r is not None]


def check_context(
    backbone: Backbone, n_prompt_tokens: int, sampling: Sampling, *, what: str = "the prompt"
) -> None:
    """Refuse a prompt that does not fit.

    Raises:
        ContextOverflowError: see ``generate``.
    """
    total = n_prompt_tokens + sampling.max_new_tokens
    if total > backbone.context_length:
        raise ContextOverflowError(
            f"{what} has {n_prompt_tokens} tokens; with max_new_tokens={sampling.max_new_tokens} "
            f"that makes {total}, but the context of {backbone.policy.base_model!r} holds "
            f"{backbone.context_length}. Prompts are never truncated: lower max_new_tokens or the "
            "turn limit, use prompt_style=compact, or a model with a longer context."
        )


def _check(prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]) -> None:
    if len(seeds) != len(prompts):
        raise ModelError(f"{len(prompts)} prompts, but {len(seeds)} seeds; one each is needed")
    if any(len(p) == 0 for p in prompts):
        raise ModelError("an empty prompt can't be continued")
    wrong = sampling.mistakes()
    if wrong:
        raise ModelError("sampling settings out of range: " + ", ".join(wrong))


def _batches(
    prompts: Sequence[Sequence[int]], max_new: int, max_batch_tokens: int
) -> Iterator[list[int]]:
    """Row indices per batch: equal prompts side by side, then by length, in a fixed order."""
    first: dict[tuple[int, ...], int] = {}
    for i, prompt in enumerate(prompts):
        first.setdefault(tuple(prompt), i)
    order = sorted(
        range(len(prompts)), key=lambda i: (len(prompts[i]), first[tuple(prompts[i])], i)
    )
    batch: list[int] = []
    for i in order:  # lengths ascend, so row i is the longest so far
        if batch and (len(batch) + 1) * (len(prompts[i]) + max_new) > max_batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


class _Batch:
    """State of one decode loop; row r of the running tensors is request ``rows[r]``."""

    def __init__(
        self,
        backbone: Backbone,
        sampling: Sampling,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
    ) -> None:
        self.model = backbone.model
        self.device = backbone.device
        self.cache_argument = cache_argument(inner(self.model))
        self.sampling = sampling
        self.stop = set(backbone.chat.stop_ids)
        self.pad = backbone.chat.stop_ids[0]
        self.prompts = prompts
        self.uniforms = np.stack(
            [np.random.default_rng(s).random(sampling.max_new_tokens) for s in seeds]
        )
        self.ids: list[list[int]] = [[] for _ in prompts]
        self.logprobs: list[list[float]] = [[] for _ in prompts]
        self.finish = ["length"] * len(prompts)

    def run(self) -> list[Generated]:
        """The decode loop."""
        rows = list(range(len(self.prompts)))
        logits, cache, mask, positions = self._prefill()
        penalty = RepetitionState(self.sampling, self.prompts, logits)
        for step in range(self.sampling.max_new_tokens):
            drawn = draw(penalty.apply(logits, rows), self.sampling, self.uniforms[rows, step])
            keep = self._record(rows, drawn)
            penalty.saw(rows, drawn.ids)
            if not keep or step + 1 == self.sampling.max_new_tokens:
                break
            tokens = drawn.ids
            if len(keep) < len(rows):
                index = torch.tensor(keep, device=self.device)
                cache.batch_select_indices(index)
                tokens, mask, positions = tokens[index], mask[index], positions[index]
                rows = [rows[k] for k in keep]
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
            logits = self._forward(tokens[:, None], mask, positions[:, None], cache)
            positions = positions + 1
        return [
            Generated(tuple(i), tuple(p), f)
            for i, p, f in zip(self.ids, self.logprobs, self.finish, strict=True)
        ]

    def _prefill(self) -> tuple[Tensor, Any, Tensor, Tensor]:
        """One forward over the distinct prompts, then one row per request.

        Returns:
            Logits (r, V), key/value cache of r rows, attention mask (r, n), next positions (r,).
        """
        from transformers import DynamicCache

        distinct = list(dict.fromkeys(tuple(p) for p in self.prompts))
        padded = pad(distinct, "left", self.pad)  # so that all rows end together
        ids, mask = (x.to(self.device) for x in padded)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        cache = DynamicCache(config=self.model.config)
        logits = self._forward(ids, mask, positions, cache)
        place = {prompt: k for k, prompt in enumerate(distinct)}
        index = torch.tensor([place[tuple(p)] for p in self.prompts], device=self.device)
        if len(distinct) < len(self.prompts) or index.tolist() != list(range(len(distinct))):
            cache.batch_select_indices(index)
        return logits[index], cache, mask[index], positions[index, -1] + 1

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
        out = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self.cache_argument: cache},
        )
        logits: Tensor = out.logits[:, -1].float()  # (r, V)
        return logits

    def _record(self, rows: Sequence[int], drawn: Draw) -> list[int]:
        """Note a step's tokens; returns the places of the rows that go on."""
        keep = []
        ids, logprobs = drawn.ids.tolist(), drawn.logprobs.tolist()
        for k, (row, token, logprob) in enumerate(zip(rows, ids, logprobs, strict=True)):
            self.ids[row].append(token)
            self.logprobs[row].append(logprob)
            if token in self.stop:
                self.finish[row] = "stop"
            else:
                keep.append(k)
        return keep


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Eval mode, no gradients; every part is as before afterwards."""
    training = [m for m in model.modules() if m.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
