"""decoder_for: how a model computes the next token's logits of a batch, prompts first, then steps.

``GroupedDecoder`` keeps one copy of a prompt's keys for all of its samples; ``PlainDecoder`` gives
every row a copy in transformers' own cache and serves every model that the other does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from iterpo.models.backbone import Backbone, inner
from iterpo.models.padding import pad
from iterpo.models.shared_prefix import cache_argument

__all__ = ["Decoder", "GroupedDecoder", "PlainDecoder", "decoder_for", "is_grouped"]

_PREFILL_TOKENS = {"cpu": 1024}  # what its caches hold; elsewhere large passes are fast
_MOST_TOKENS = 16_384
_PADDING = 0.1


class Decoder(Protocol):
    """One batch; ``prefill`` once, then steps."""

    def prefill(self) -> Tensor:
        """Logits (r, V), float32, behind the prompt of each row."""
        ...

    def step(self, tokens: Tensor, keep: Sequence[int] | None) -> Tensor:
        """Logits (k, V), float32, behind one more token.

        Args:
            tokens: Token ids (r,) of the running rows.
            keep: Places (k,) of the rows that go on; None if all do.
        """
        ...

    def steps(self) -> Any:
        """Context in which ``step`` is called."""
        ...


def is_grouped(backbone: Backbone) -> bool:
    """Whether the model can be sampled from with a ``GroupedDecoder``."""
    from iterpo.models.grouped_cache import takes_grouped_cache

    adapters = getattr(backbone.model, "peft_config", {}).values()
    return all(c.peft_type == "LORA" for c in adapters) and takes_grouped_cache(
        inner(backbone.model)
    )


def decoder_for(backbone: Backbone, prompts: Sequence[Sequence[int]], max_new: int) -> Decoder:
    """The fastest decoder that is exact for the model."""
    if is_grouped(backbone):
        return GroupedDecoder(backbone, prompts, max_new)
    return PlainDecoder(backbone, prompts)


class PlainDecoder:
    """transformers' forward and cache, as they are; a row per request."""

    def __init__(self, backbone: Backbone, prompts: Sequence[Sequence[int]]) -> None:
        self.model, self.device = backbone.model, backbone.device
        self.cache_argument = cache_argument(inner(self.model))
        self.pad = backbone.chat.stop_ids[0]
        self.prompts = prompts
        self.cache: Any = None

    def prefill(self) -> Tensor:
        """One forward over the distinct prompts, then one row per request."""
        from transformers import DynamicCache

        distinct = list(dict.fromkeys(tuple(p) for p in self.prompts))
        padded = pad(distinct, "left", self.pad)  # so that all rows end together
        ids, mask = (x.to(self.device) for x in padded)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        self.cache = DynamicCache(config=self.model.config)
        logits = self._forward(ids, mask, positions)
        place = {prompt: k for k, prompt in enumerate(distinct)}
        index = torch.tensor([place[tuple(p)] for p in self.prompts], device=self.device)
        if len(distinct) < len(self.prompts) or index.tolist() != list(range(len(distinct))):
            self.cache.batch_select_indices(index)
        self.mask, self.positions = mask[index], positions[index, -1] + 1
        return logits[index]

    def steps(self) -> Any:
        """Nothing to prepare."""
        return nullcontext()

    def step(self, tokens: Tensor, keep: Sequence[int] | None) -> Tensor:
        """See ``Decoder``."""
        if keep is not None:
            index = torch.tensor(keep, device=self.device)
            self.cache.batch_select_indices(index)
            tokens, self.mask, self.positions = (
                x[index] for x in (tokens, self.mask, self.positions)
            )
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], dim=1)
        logits = self._forward(tokens[:, None], self.mask, self.positions[:, None])
        self.positions = self.positions + 1
        return logits

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        out = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self.cache_argument: self.cache},
        )
        logits: Tensor = out.logits[:, -1].float()  # (r, V)
        return logits


class GroupedDecoder:
    """Prompts padded on the right, a few at a time; then steps on a ``GroupedCache``."""

    def __init__(self, backbone: Backbone, prompts: Sequence[Sequence[int]], max_new: int) -> None:
        from iterpo.models.grouped_cache import GroupedCache

        self.model, self.device = inner(backbone.model), backbone.device
        self.cache_argument = cache_argument(self.model)
        self.distinct = list(dict.fromkeys(tuple(p) for p in prompts))
        place = {prompt: k for k, prompt in enumerate(self.distinct)}
        self.prompt_of = [place[tuple(p)] for p in prompts]
        lengths = [len(p) for p in self.distinct]
        self.cache = GroupedCache(self.prompt_of, lengths, max_new)
        self.positions = torch.tensor([len(p) for p in prompts], device=self.device)

    def prefill(self) -> Tensor:
        """A forward per few prompts of similar length, so that little is spent on padding."""
        logits: dict[int, Tensor] = {}
        most = _PREFILL_TOKENS.get(self.device.type, _MOST_TOKENS)
        for chunk in _chunks([len(p) for p in self.distinct], most):
            logits.update(zip(chunk, self._prefill(chunk), strict=True))
        self.cache.start()
        return torch.stack([logits[p] for p in self.prompt_of])

    def _prefill(self, chunk: Sequence[int]) -> Tensor:
        """Logits (u, V) behind the prompts of a chunk, whose keys go to the cache."""
        from transformers import DynamicCache

        ids, mask = pad([self.distinct[p] for p in chunk])
        # What is causal never sees the padding behind it, so no mask is needed, which is faster.
        last = (mask.sum(1) - 1).to(self.device)
        ends, place = torch.unique(last, return_inverse=True)
        cache = DynamicCache(config=self.model.config)
        logits = self._forward(
            ids.to(self.device), torch.arange(ids.shape[1], device=self.device)[None], cache, ends
        )
        self.cache.fill(chunk, cache)
        return logits[torch.arange(len(chunk), device=self.device), place].float()

    @contextmanager
    def steps(self) -> Iterator[None]:
        """The model attends to the grouped cache."""
        from iterpo.models.grouped_cache import grouped_attention

        with grouped_attention(self.model):
            yield

    def step(self, tokens: Tensor, keep: Sequence[int] | None) -> Tensor:
        """See ``Decoder``."""
        if keep is not None:
            index = torch.tensor(keep, device=self.device)
            self.cache.keep(keep)
            tokens, self.positions = tokens[index], self.positions[index]
        self.cache.step()
        logits = self._forward(tokens[:, None], self.positions[:, None], self.cache.cache, 1)
        self.positions = self.positions + 1
        return logits[:, -1].float()

    def _forward(self, ids: Tensor, positions: Tensor, cache: Any, keep: Tensor | int) -> Tensor:
        out = self.model(
            input_ids=ids,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=keep,
            **{self.cache_argument: cache},
        )
        logits: Tensor = out.logits
        return logits


def _chunks(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Prompts by length, few enough at a time for the memory and with little padding."""
    chunk: list[int] = []
    real = 0
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        padded = (len(chunk) + 1) * lengths[i]
        wasteful = padded - real - lengths[i] > max(_PADDING * padded, 32)
        if chunk and (padded > most or wasteful):
            yield chunk
            chunk, real = [], 0
        chunk.append(i)
        real += lengths[i]
    if chunk:
        yield chunk
