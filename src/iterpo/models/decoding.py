"""decoder_for: how a model computes the next token's logits of a batch, prompts first, then steps.

``GroupedDecoder`` keeps one copy of a prompt's keys for all of its samples; ``PlainDecoder`` gives
every row a copy in transformers' own cache and serves every model that the other does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from iterpo.models.attention import attending, plain_attention
from iterpo.models.backbone import Backbone, inner
from iterpo.models.beginnings import beginnings
from iterpo.models.grouped_cache import GroupedCache, grouped_attention
from iterpo.models.kept_turns import LayerStates, Past
from iterpo.models.padding import alike, distinct, pad
from iterpo.models.prompt_pass import PromptPass
from iterpo.models.shared_prefix import cache_argument

__all__ = ["Decoder", "GroupedDecoder", "PlainDecoder", "decoder_for"]

_PREFILL_TOKENS = {"cpu": 1024}  # what its caches hold; elsewhere large passes are fast
_MOST_TOKENS = 16_384


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

    def states_of(self, place: int) -> LayerStates | None:
        """Keys and values of a row's prompt and the tokens fed to it; None if they aren't plain."""
        ...


def decoder_for(
    backbone: Backbone,
    prompts: Sequence[Sequence[int]],
    max_new: int,
    pasts: Sequence[Past | None] = (),
) -> Decoder:
    """The fastest decoder that is exact for the model.

    Args:
        backbone: The policy.
        prompts: Prompt of each row (r,).
        max_new: Most tokens that a row will add.
        pasts: What is known of each prompt (r,), or nothing.
    """
    adapters = getattr(backbone.model, "peft_config", {}).values()
    plain = all(c.peft_type == "LORA" for c in adapters)
    if plain and plain_attention(inner(backbone.model)):
        return GroupedDecoder(backbone, prompts, max_new, pasts)
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

        prompts, prompt_of = distinct(self.prompts)
        padded = pad(prompts, "left", self.pad)  # so that all rows end together
        ids, mask = (x.to(self.device) for x in padded)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        self.cache = DynamicCache(config=self.model.config)
        logits = self._forward(ids, mask, positions)
        index = torch.tensor(prompt_of, device=self.device)
        if len(prompts) < len(prompt_of):  # else they are in order
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

    def states_of(self, place: int) -> None:
        """See ``Decoder``."""

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

    def __init__(
        self,
        backbone: Backbone,
        prompts: Sequence[Sequence[int]],
        max_new: int,
        pasts: Sequence[Past | None] = (),
    ) -> None:
        self.model, self.device = inner(backbone.model), backbone.device
        self.cache_argument = cache_argument(self.model)
        self.distinct, self.prompt_of = distinct(prompts)
        self.pasts: dict[int, Past] = {}  # of distinct prompts; the longest that a row has
        for prompt, past in zip(self.prompt_of, pasts, strict=False):
            before = self.pasts.get(prompt)
            if past is not None and (before is None or past.length > before.length):
                self.pasts[prompt] = past
        lengths = [len(p) for p in self.distinct]
        self.cache = GroupedCache(self.prompt_of, lengths, max_new)
        self.positions = torch.tensor([len(p) for p in prompts], device=self.device)

    def prefill(self) -> Tensor:
        """A forward per few prompts of similar length, so that little is spent on padding."""
        self._run_beginnings()
        fresh = [k for k in range(len(self.distinct)) if k not in self.pasts]
        logits: dict[int, Tensor] = {}
        for group in (fresh, sorted(self.pasts)):  # without a past no mask is needed
            prompts = [self.distinct[k] for k in group]
            for chunk, passed, found in self._passes(prompts, [self.pasts.get(k) for k in group]):
                places = [group[i] for i in chunk]
                logits.update(zip(places, found, strict=True))
                self.cache.fill(places, passed)
        self.pasts.clear()  # the cache has its copy, which is all that the steps need
        self.cache.start()
        return torch.stack([logits[p] for p in self.prompt_of]).float()

    def _run_beginnings(self) -> None:
        """What prompts without a past share runs once; it is their past from then on."""
        fresh = [k for k in range(len(self.distinct)) if k not in self.pasts]
        groups = list(beginnings([self.distinct[k] for k in fresh]))
        shared = [self.distinct[fresh[members[0]]][:n] for n, members in groups]
        for chunk, passed, _ in self._passes(shared, [None] * len(shared)):
            for row, i in enumerate(chunk):
                n, members = groups[i]
                past = Past(n, [(x.keys[row], x.values[row]) for x in passed.layers])
                self.pasts.update((fresh[k], past) for k in members)

    def _passes(
        self, prompts: Sequence[Sequence[int]], pasts: Sequence[Past | None]
    ) -> Iterator[tuple[list[int], PromptPass, Tensor]]:
        """Places of the prompts of each pass, the pass, and the logits (u, V) behind them."""
        left = [
            len(prompt) - (past.length if past else 0)
            for prompt, past in zip(prompts, pasts, strict=True)
        ]
        for chunk in alike(left, _PREFILL_TOKENS.get(self.device.type, _MOST_TOKENS)):
            run = PromptPass([prompts[i] for i in chunk], [pasts[i] for i in chunk], self.device)
            yield chunk, run, run.logits(self.model, self.cache_argument)

    def states_of(self, place: int) -> LayerStates:
        """See ``Decoder``."""
        return self.cache.states_of(place)

    def steps(self) -> Any:
        """The model attends to the grouped cache."""
        return attending(self.model, grouped_attention)

    def step(self, tokens: Tensor, keep: Sequence[int] | None) -> Tensor:
        """See ``Decoder``."""
        if keep is not None:
            index = torch.tensor(keep, device=self.device)
            self.cache.keep(keep)
            tokens, self.positions = tokens[index], self.positions[index]
        self.cache.step()
        out = self.model(
            input_ids=tokens[:, None],
            position_ids=self.positions[:, None],
            use_cache=True,
            logits_to_keep=1,
            **{self.cache_argument: self.cache.cache},
        )
        self.positions = self.positions + 1
        logits: Tensor = out.logits[:, -1].float()  # (r, V)
        return logits
