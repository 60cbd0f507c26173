"""GroupedCache: keys and values of a running batch in which the samples of a prompt share its own.

The rows of a batch sit on a grid: each line holds one prompt's keys once and a slot for each of up
to 16 samples. A step writes the new keys of all slots of a line side by side behind those of the
step before, so that the cache never grows by copying, and one attention call per layer reads a
line's keys for all of its samples under a mask that hides the other samples' tokens: one softmax
over prompt and response. Nothing here knows an architecture: models reach it through transformers'
cache and attention interfaces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

from iterpo.models.shared_prefix import keeps_prompts

__all__ = ["GroupedCache", "UnusualAttention", "grouped_attention", "takes_grouped_cache"]

_NAME = "iterpo_grouped"
_WIDEST = 16
_NEUTRAL = {"dropout", "scaling", "is_causal", "position_ids", "use_cache", "cache_position"}


class UnusualAttention(Exception):  # noqa: N818 - a signal between modules, never shown
    """The model's attention is more than queries, keys, values and a causal mask."""


def takes_grouped_cache(model: Any) -> bool:
    """Whether a transformers model keeps all of its prompts and attends through the interface."""
    return (
        bool(getattr(model, "_supports_attention_backend", False))
        and model.config._attn_implementation in ("sdpa", "eager")
        and keeps_prompts(model.config)
    )


@contextmanager
def grouped_attention(model: Any) -> Iterator[None]:
    """The model attends to a ``GroupedCache``; afterwards as before."""
    AttentionInterface.register(_NAME, _attend)
    before = model.config._attn_implementation
    model.config._attn_implementation = _NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before


class GroupedCache:
    """Grid of one batch; rows are numbered by their place in the running batch."""

    def __init__(self, prompt_of: Sequence[int], lengths: Sequence[int], max_new: int) -> None:
        """An empty cache.

        Args:
            prompt_of: Prompt of each row (r,); every prompt has a row.
            lengths: Tokens of each prompt (u,).
            max_new: Most tokens that a row will add.
        """
        self.lengths, self.max_new, self.steps = list(lengths), max_new, 0
        self.columns = max(lengths)
        self.width, self.lines = _grid(prompt_of, self.columns, max_new)
        self.prompts = [prompt_of[line[0]] for line in self.lines]
        self.layers: list[_Layer] = []
        self.cache: Any = Cache(layers=self.layers)
        """What the model is given."""

    def fill(self, prompts: Sequence[int], prefilled: Any) -> None:
        """Take over the keys of ``prompts``, padded on the right, from a ``DynamicCache``."""
        places = [(i, prompts.index(p)) for i, p in enumerate(self.prompts) if p in prompts]
        if not self.layers:
            self.layers.extend(_Layer(self) for _ in prefilled.layers)
        for layer, found in zip(self.layers, prefilled.layers, strict=True):
            layer.fill(places, found.keys, found.values)

    def start(self) -> None:
        """Everything is filled; steps follow."""
        self._lay_out()
        self._hide()

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows of the running batch only, in this order."""
        place = {row: k for k, row in enumerate(rows)}
        self.lines = [[place.get(row, -1) for row in line] for line in self.lines]
        alive = [i for i, line in enumerate(self.lines) if max(line) >= 0]
        width = max(sum(row >= 0 for row in self.lines[i]) for i in alive)
        # A smaller grid costs a copy, about as much as the attention of one step.
        if 4 * len(alive) * self.end_of(width) <= 3 * len(self.lines) * self.end_of(self.width):
            self._shrink(alive, width)
        self._lay_out()

    def end_of(self, width: int) -> int:
        """Columns in use if a line has ``width`` slots."""
        return self.columns + self.steps * width

    def _shrink(self, alive: Sequence[int], width: int) -> None:
        taken = []
        for i in alive:
            live = [j for j, row in enumerate(self.lines[i]) if row >= 0]
            taken.append((live + [0] * width)[:width])
        lines = [self.lines[i] for i in alive]
        self.lines = [
            [line[j] if k < sum(r >= 0 for r in line) else -1 for k, j in enumerate(slots)]
            for line, slots in zip(lines, taken, strict=True)
        ]
        self.prompts = [self.prompts[i] for i in alive]
        device = self.layers[0].keys.device
        index = torch.tensor(alive, device=device), torch.tensor(taken, device=device)
        for layer in self.layers:
            layer.shrink(*index)
        self.width = width
        self._hide()

    def _lay_out(self) -> None:
        """Which row each slot shows, and where each row is."""
        flat = [row for line in self.lines for row in line]
        rows = sum(row >= 0 for row in flat)
        self.shape = len(self.lines), self.width
        self.plain = flat == list(range(rows))
        device = self.layers[0].keys.device
        slot = {row: k for k, row in enumerate(flat)}
        self.shown = torch.tensor([max(row, 0) for row in flat], device=device)
        self.slots = torch.tensor([slot[k] for k in range(rows)], device=device)

    def _hide(self) -> None:
        """The mask (lines, 1, heads per key head x slots, columns) for all steps to come."""
        keys = self.layers[0].keys
        lines, width = len(self.lines), self.width
        own = torch.eye(width, dtype=torch.bool, device=keys.device).repeat(1, self.max_new)
        lengths = torch.tensor([self.lengths[p] for p in self.prompts], device=keys.device)
        seen = torch.arange(self.columns, device=keys.device) < lengths[:, None]
        both = torch.cat(
            [
                seen[:, None].expand(lines, width, self.columns),
                own[None].expand(lines, -1, -1),
            ],
            dim=-1,
        )
        self.mask = torch.zeros(both.shape, dtype=keys.dtype, device=keys.device)
        self.mask.masked_fill_(~both, -torch.inf)
        self.repeated = self.mask[:, None]

    def mask_for(self, repeats: int) -> Tensor:
        """The mask of this step, each slot's row ``repeats`` times, one for each of its heads."""
        if self.repeated.shape[2] != repeats * self.width:
            self.repeated = self.mask.repeat_interleave(repeats, dim=1)[:, None]
        return self.repeated[..., : self.end_of(self.width)]

    def on_grid(self, states: Tensor) -> Tensor:
        """States of rows (r, heads, …) as (lines, slots, heads, …)."""
        shown = states if self.plain else states[self.shown]
        return shown.reshape(*self.shape, *states.shape[1:])

    def off_grid(self, states: Tensor) -> Tensor:
        """The inverse of ``on_grid``."""
        flat = states.flatten(0, 1)
        return flat if self.plain else flat[self.slots]


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """One model layer's keys and values (lines, key heads, columns, d)."""

    is_sliding = False
    is_croppable = False

    def __init__(self, grid: GroupedCache) -> None:
        super().__init__()
        self.grid = grid
        self.keys: Tensor
        self.values: Tensor

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Room for all prompts and responses; padding must be finite, so zeros."""
        grid = self.grid
        room = len(grid.lines), grid.columns + grid.max_new * grid.width
        self.keys, self.values = (
            x.new_zeros(room[0], x.shape[1], room[1], x.shape[3])
            for x in (key_states, value_states)
        )
        self.is_initialized = True

    def fill(self, places: Sequence[tuple[int, int]], keys: Tensor, values: Tensor) -> None:
        """Copy prompts; ``places`` pairs lines of the grid with rows of ``keys``."""
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        lines, rows = (list(x) for x in zip(*places, strict=True))
        self.keys[lines, :, : keys.shape[2]] = keys[rows]
        self.values[lines, :, : keys.shape[2]] = values[rows]

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Write a step's keys and values (r, key heads, 1, d); the attention finds them here."""
        grid = self.grid
        end = grid.end_of(grid.width)  # the step is counted before its layers run
        for kept, new in ((self.keys, key_states), (self.values, value_states)):
            kept[:, :, end - grid.width : end] = grid.on_grid(new[:, :, 0]).transpose(1, 2)
        key_states._grouped = self  # type: ignore[attr-defined]
        return key_states, value_states

    def shrink(self, lines: Tensor, slots: Tensor) -> None:
        """Keep ``lines`` (n,) and of each its ``slots`` (n, new width)."""
        grid, width = self.grid, slots.shape[1]
        end = grid.end_of(grid.width)
        fresh = []
        for kept in (self.keys, self.values):
            said = kept[:, :, grid.columns : end]
            said = said.reshape(*said.shape[:2], grid.steps, grid.width, -1)
            moved = said.permute(0, 3, 1, 2, 4)[lines[:, None], slots]  # slots before heads
            new = kept.new_zeros(
                len(lines), kept.shape[1], grid.columns + grid.max_new * width, kept.shape[3]
            )
            new[:, :, : grid.columns] = kept[lines, :, : grid.columns]
            new[:, :, grid.columns : grid.end_of(width)] = moved.permute(0, 2, 3, 1, 4).flatten(
                2, 3
            )
            fresh.append(new)
        self.keys, self.values = fresh

    def get_seq_length(self) -> int:
        """Tokens of the longest prompt and of the responses so far."""
        return self.grid.columns + self.grid.steps

    def get_max_length(self) -> int:
        """No limit of its own."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """As if every row had its own keys."""
        return self.get_seq_length() + query_length, 0


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    _value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Attention of one new token per row (r, heads, 1, d) to its prompt and response."""
    layer: _Layer | None = getattr(key, "_grouped", None)
    unusual = sorted(k for k, v in rest.items() if k not in _NEUTRAL and v is not None)
    if layer is None or query.shape[2] != 1 or attention_mask is not None or unusual:
        raise UnusualAttention(f"{type(module).__name__}: {unusual}")
    grid = layer.grid
    end = grid.end_of(grid.width)
    heads = layer.keys.shape[1]
    repeats = query.shape[1] // heads
    # A key head's queries, of all slots and heads that read it, are the rows of one product.
    asked = grid.on_grid(query.reshape(-1, heads, repeats, query.shape[3]))
    asked = asked.transpose(1, 2).flatten(2, 3)  # (lines, key heads, slots x repeats, d)
    found = scaled_dot_product_attention(
        asked,
        layer.keys[:, :, :end],
        layer.values[:, :, :end],
        attn_mask=grid.mask_for(repeats),
        scale=scaling,
    )
    found = found.reshape(*found.shape[:2], grid.width, repeats, -1).transpose(1, 2)
    return grid.off_grid(found).flatten(1, 2).unsqueeze(1), None


def _grid(prompt_of: Sequence[int], columns: int, max_new: int) -> tuple[int, list[list[int]]]:
    """Slots per line, and the row in each slot (-1: none), with the fewest keys to read."""
    counts = Counter(prompt_of)
    width = min(
        range(1, min(_WIDEST, max(counts.values())) + 1),
        key=lambda w: sum(-(-c // w) for c in counts.values()) * (columns + w * max_new),
    )
    rows: dict[int, list[int]] = {}
    for row, prompt in enumerate(prompt_of):
        rows.setdefault(prompt, []).append(row)
    lines = [own[i : i + width] for own in rows.values() for i in range(0, len(own), width)]
    return width, [line + [-1] * (width - len(line)) for line in lines]
