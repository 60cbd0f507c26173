"""Batched sampling: an own decode loop in which every request has its own seed.

The checkpoint's generation defaults play no part: the only settings are those of
``domain.Sampling``. Identical prompts share one prefill; finished rows leave the batch. A request's
draws depend on its seed alone, so that its batch can change a response only through floating-point
noise.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from iterpo.domain import Sampling
from iterpo.errors import ContextOverflowError, ModelError
from iterpo.models.attention import UnusualAttention
from iterpo.models.backbone import Backbone
from iterpo.models.decoding import Decoder, PlainDecoder, decoder_for
from iterpo.models.kept_turns import KeptTurns, Past, weights_stamp
from iterpo.models.padding import distinct
from iterpo.models.plain_layers import plain_layers
from iterpo.models.sampler import Draw, RepetitionState, draw
from iterpo.models.voice import Voice

__all__ = ["Generated", "check_context", "check_requests", "evaluating", "generate"]


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
    kept: KeptTurns | None = None,
    speakers: Sequence[Hashable] = (),
) -> list[Generated]:
    """Sample one response per prompt, with the adapter that is active on the model.

    Args:
        backbone: The policy.
        prompts: Rendered prompts (``ChatFormat.prompt_ids``); identical ones share a prefill.
        sampling: Settings, applied exactly and by this module alone.
        seeds: One seed per prompt, in [0, 2**63).
        max_batch_tokens: Bound of a batch: rows x (longest prompt + max_new_tokens).
        kept: What earlier calls with the same model left; prompts that go on from there run from
            where they differ, which changes results by rounding alone. Models whose caches are not
            plain neither read nor leave anything.
        speakers: With ``kept``: whose prompt each is, one per prompt, no two alike.

    Raises:
        ContextOverflowError: if a prompt and its response do not fit the context; nothing has
            been run then, and nothing is ever truncated.
        ModelError: if the settings make no sense, or the model's logits are not finite.
    """
    check_requests(backbone, prompts, sampling, seeds)
    if kept is not None:
        _check_speakers(speakers, len(prompts))
        kept.check(weights_stamp(backbone.model))
    results: list[Generated | None] = [None] * len(prompts)
    made = None if kept is None else kept.layers
    with evaluating(backbone.model), plain_layers(backbone.model, made):
        for rows in _batches(prompts, sampling.max_new_tokens, max_batch_tokens):
            batch = _Batch(backbone, sampling, [prompts[i] for i in rows], [seeds[i] for i in rows])
            if kept is not None:
                batch.remember(kept, [speakers[i] for i in rows])
            for i, result in zip(rows, batch.run(), strict=True):
                results[i] = result
    return [r for r in results if r is not None]


def check_context(
    model: Voice, n_prompt_tokens: int, sampling: Sampling, *, what: str = "the prompt"
) -> None:
    """Refuse a prompt that does not fit.

    Raises:
        ContextOverflowError: see ``generate``.
    """
    total = n_prompt_tokens + sampling.max_new_tokens
    if total > model.context_length:
        raise ContextOverflowError(
            f"{what} has {n_prompt_tokens} tokens; with max_new_tokens={sampling.max_new_tokens} "
            f"that makes {total}, but the context of {model.policy.base_model!r} holds "
            f"{model.context_length}. Prompts are never truncated: lower max_new_tokens or the "
            "turn limit, use prompt_style=compact, or a model with a longer context."
        )


def check_requests(
    model: Voice, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
) -> None:
    """Refuse what no engine can answer, before anything has run.

    Raises:
        ContextOverflowError, ModelError: see ``generate``.
    """
    if len(seeds) != len(prompts):
        raise ModelError(f"{len(prompts)} prompts, but {len(seeds)} seeds; one each is needed")
    if any(len(p) == 0 for p in prompts):
        raise ModelError("an empty prompt can't be continued")
    wrong = sampling.mistakes()
    if wrong:
        raise ModelError("sampling settings out of range: " + ", ".join(wrong))
    for i, prompt in enumerate(prompts):
        check_context(model, len(prompt), sampling, what=f"prompt {i}")


def _check_speakers(speakers: Sequence[Hashable], n: int) -> None:
    if len(speakers) != n or len(set(speakers)) != n:
        raise ModelError(
            f"{n} prompts, but {len(set(speakers))} different speakers; one each is needed"
        )


def _batches(
    prompts: Sequence[Sequence[int]], max_new: int, max_batch_tokens: int
) -> Iterator[list[int]]:
    """Row indices per batch: equal prompts side by side, then by length, in a fixed order."""
    _, index = distinct(prompts)
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), index[i], i))
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
        self.backbone = backbone
        self.sampling = sampling
        self.stop = set(backbone.chat.stop_ids)
        self.prompts = prompts
        self.uniforms = np.stack(
            [np.random.default_rng(s).random(sampling.max_new_tokens) for s in seeds]
        )
        self.kept: KeptTurns | None = None
        self.speakers: Sequence[Hashable] = ()
        self._forget()

    def remember(self, kept: KeptTurns, speakers: Sequence[Hashable]) -> None:
        """Start from what is kept of each prompt's speaker, and leave what came of it."""
        self.kept, self.speakers = kept, speakers

    def run(self) -> list[Generated]:
        """The decode loop, on the decoder that is fastest for the model."""
        try:
            self._decode(self._decoder())
        except UnusualAttention:  # soon; seeds make starting over draw the same
            self._forget()
            self._decode(PlainDecoder(self.backbone, self.prompts))
        return [
            Generated(tuple(i), tuple(p), f)
            for i, p, f in zip(self.ids, self.logprobs, self.finish, strict=True)
        ]

    def _decoder(self) -> Decoder:
        pasts: list[Past | None] = []
        if self.kept is not None:
            pasts = list(map(self.kept.find, self.speakers, self.prompts))
        return decoder_for(self.backbone, self.prompts, self.sampling.max_new_tokens, pasts)

    def _forget(self) -> None:
        self.ids: list[list[int]] = [[] for _ in self.prompts]
        self.logprobs: list[list[float]] = [[] for _ in self.prompts]
        self.finish = ["length"] * len(self.prompts)

    def _decode(self, decoder: Decoder) -> None:
        rows = list(range(len(self.prompts)))
        logits = decoder.prefill()
        penalty = RepetitionState(self.sampling, self.prompts, logits)
        with decoder.steps():
            for step in range(self.sampling.max_new_tokens):
                drawn = draw(penalty.apply(logits, rows), self.sampling, self.uniforms[rows, step])
                keep = self._record(rows, drawn)
                penalty.saw(rows, drawn.ids)
                fewer, last = len(keep) < len(rows), step + 1 == self.sampling.max_new_tokens
                if self.kept is not None and (fewer or last):
                    self._keep(decoder, rows, () if last else keep)
                if not keep or last:
                    break
                rows = [rows[k] for k in keep]
                logits = decoder.step(drawn.ids, keep if fewer else None)

    def _keep(self, decoder: Decoder, rows: Sequence[int], running: Sequence[int]) -> None:
        """Keep the states of all rows but those at the places that go on."""
        for k in sorted(set(range(len(rows))).difference(running)):
            row = rows[k]
            ids = [*self.prompts[row], *self.ids[row][:-1]]  # what was drawn last has not run
            if self.kept is not None:
                self.kept.keep(self.speakers[row], ids, partial(decoder.states_of, k))

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
