"""PromptPass: a few prompts go through a model once, each from where what is known of it ends.

A row's new tokens are written right behind its known ones, so that its keys lie as if the whole
prompt had run. Of the last layer only keys and values are needed, and the output at each prompt's
last token; what else it would compute is left out where the model's layers can be called so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from iterpo.models.attention import (
    UnusualAttention,
    attending,
    by_products,
    check_plain,
    products,
)
from iterpo.models.kept_turns import Past
from iterpo.models.padding import pad

__all__ = ["PromptPass", "prompt_attention"]

_KNOWN = {"attention_mask", "position_ids", "position_embeddings"}
_QUERIES = 96  # at a time; what comes behind the last of them is left out


class PromptPass:
    """One forward pass, and the keys and values that it leaves.

    Args:
        prompts: Token ids of each prompt (u).
        pasts: What is known of each prompt (u).
        device: Where the model is.
    """

    def __init__(
        self, prompts: Sequence[Sequence[int]], pasts: Sequence[Past | None], device: torch.device
    ) -> None:
        self.pasts = pasts
        known = [past.length if past else 0 for past in pasts]
        ids, mask = pad([prompt[n:] for prompt, n in zip(prompts, known, strict=True)])
        self.ids, self.last = ids.to(device), (mask.sum(1) - 1).to(device)  # (u, t), (u,)
        self.fresh = not any(known)
        before = torch.tensor(known, device=device)[:, None]
        self.columns = before + torch.arange(ids.shape[1], device=device)  # (u, t)
        self.most_known = max(known)
        self.width = self.most_known + ids.shape[1]
        # Padding is never read, but a model may have no position so far out.
        self.positions = torch.minimum(self.columns, before + self.last[:, None])
        if self.fresh:
            self.positions = self.columns[:1]
        self.layers: list[_Layer] = []
        self.in_part = False

    def logits(self, model: Any, cache_argument: str) -> Tensor:
        """Logits (u, V) behind the prompts.

        Args:
            model: A transformers model, of ``attention.plain_attention``.
            cache_argument: What it calls its cache.

        Raises:
            UnusualAttention: if a layer asks for more than the prompts before a token.
        """
        count = len(DynamicCache(config=model.config).layers)
        self.layers = [_Layer(self, i) for i in range(count)]
        given: dict[str, Any] = {cache_argument: Cache(layers=self.layers)}
        self.unseen = self._unseen(self.columns[:1] if self.fresh else self.columns)
        with attending(model, prompt_attention), self._shortened(model, count) as shortened:
            ends, place = torch.unique(self.last, return_inverse=True)
            out = model(
                input_ids=self.ids,
                position_ids=self.positions,
                use_cache=True,
                logits_to_keep=1 if shortened else ends,
                **given,
            )
        rows = torch.arange(len(self.ids), device=self.ids.device)
        logits: Tensor = out.logits[:, -1] if shortened else out.logits[rows, place]
        return logits

    def attend(self, query: Tensor, layer: _Layer, scale: float) -> Tensor:
        """Attention of ``query`` (u, h, t, d), or (u, h, 1, d) at the last tokens, likewise."""
        key, value = layer.keys, layer.values
        asked = query.reshape(len(query), key.shape[1], -1, *query.shape[2:])
        if query.shape[2] < self.ids.shape[1]:
            unseen = self._unseen(self.columns.gather(1, self.last[:, None]))
            return products(asked, key, value, unseen, scale).flatten(1, 2)
        if by_products(key):
            found = []
            for start in range(0, query.shape[2], _QUERIES):
                some = slice(start, start + _QUERIES)
                seen = slice(0, self.most_known + some.stop)
                unseen = self.unseen[:, some, seen]
                part = asked[..., some, :], key[:, :, seen], value[:, :, seen]
                found.append(products(*part, unseen, scale))
            return torch.cat(found, dim=3).flatten(1, 2)
        if asked.shape[2] > 1:
            key, value = (x.repeat_interleave(asked.shape[2], dim=1) for x in (key, value))
        mask = None if self.fresh else self.unseen[:, None].to(query.dtype)
        return scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=self.fresh, scale=scale
        )

    def _unseen(self, columns: Tensor) -> Tensor:
        """What queries at ``columns`` (u, q) don't see, (u, q, width): to be added to scores."""
        seen = torch.arange(self.width, device=columns.device) <= columns[..., None]
        return torch.zeros(seen.shape, device=columns.device).masked_fill_(~seen, -torch.inf)

    @contextmanager
    def _shortened(self, model: Any, count: int) -> Iterator[bool]:
        """The last of ``count`` layers gives one state per prompt inside, if it can be found."""
        layers: Any = getattr(model.get_decoder(), "layers", ())
        if len(layers) != count or "forward" in layers[-1].__dict__:
            yield False
            return
        layer = layers[-1]
        layer.__dict__["forward"] = partial(self._last_layer, layer)
        try:
            yield True
        finally:
            del layer.__dict__["forward"]

    def _last_layer(self, layer: Any, states: Tensor, *args: Any, **given: Any) -> Any:
        forward = partial(type(layer).forward, layer)
        known = (Cache, type(None), bool, int, float, str)
        if args or not all(k in _KNOWN or isinstance(v, known) for k, v in given.items()):
            return self._picked(forward(states, *args, **given))
        self.in_part = True
        try:
            whole = forward(states, **given)
        except _Written:
            pass
        else:  # it has no cache of its own
            return self._picked(whole)
        finally:
            self.in_part = False
        given.update((name, self._picked(given[name])) for name in _KNOWN & given.keys())
        return forward(self._picked(states), **given)

    def _picked(self, found: Any) -> Any:
        """Tensors (u or 1, t, …) at the last tokens of the prompts (u, 1, …)."""
        if isinstance(found, tuple):
            return tuple(self._picked(x) for x in found)
        if not isinstance(found, Tensor):
            return found
        rows = torch.arange(len(self.last), device=found.device)
        return found.expand(len(rows), *found.shape[1:])[rows, self.last][:, None]


class _Written(Exception):  # noqa: N818 - a signal within this module
    """The last layer's keys and values are where they belong; the rest is not wanted."""


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """One model layer's keys and values (u, key heads, width, d)."""

    is_sliding = False
    is_croppable = False

    def __init__(self, owner: PromptPass, index: int) -> None:
        super().__init__()
        self.owner, self.index = owner, index
        self.keys: Tensor
        self.values: Tensor

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """What is known; what is hidden must be finite, so zeros."""
        width = self.owner.width
        self.keys, self.values = (
            x.new_zeros(*x.shape[:2], width, x.shape[3]) for x in (key_states, value_states)
        )
        for row, past in enumerate(self.owner.pasts):
            if past is not None:
                for kept, own in zip(
                    (self.keys, self.values), past.states[self.index], strict=True
                ):
                    kept[row, :, : past.length] = own[:, : past.length]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Write what is new; a second call, for the last tokens, finds it written."""
        if self.is_initialized:
            return self._handed_on()
        if self.owner.fresh:
            self.keys, self.values, self.is_initialized = key_states, value_states, True
        else:
            self.lazy_initialization(key_states, value_states)
            rows = torch.arange(len(key_states), device=key_states.device)[:, None]
            for kept, new in ((self.keys, key_states), (self.values, value_states)):
                kept.transpose(1, 2)[rows, self.owner.columns] = new.transpose(1, 2)
        if self.owner.in_part:
            raise _Written
        return self._handed_on()

    def _handed_on(self) -> tuple[Tensor, Tensor]:
        self.keys._passed = self  # type: ignore[attr-defined]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Tokens that a row may hold without the new ones."""
        return self.owner.width - self.owner.ids.shape[1]

    def get_max_length(self) -> int:
        """No limit of its own."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """All columns; asked for only where nothing is known before."""
        return self.get_seq_length() + query_length, 0


def prompt_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    _value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Attention of a pass's tokens (u, h, t, d) to those before them."""
    check_plain(module, attention_mask, rest)
    layer: _Layer | None = getattr(key, "_passed", None)
    if layer is None:
        raise UnusualAttention(f"{type(module).__name__} does not hand on what its cache gave")
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    return layer.owner.attend(query, layer, scale).transpose(1, 2).contiguous(), None
