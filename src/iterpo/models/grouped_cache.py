"""GroupedCache: keys and values of a running batch in which the samples of a prompt share its own.

The rows of a batch sit on a grid: each line holds one prompt's keys once and a slot for each of up
to 16 samples. A step writes the new keys of all slots of a line side by side behind those of the
step before, so that the cache is rarely copied, and one attention call per layer reads a line's
keys for all of its samples under a mask that hides the other samples' tokens: one softmax over
prompt and response. Nothing here knows an architecture: models reach it through transformers'
cache and attention interfaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.cache_utils import Cache, CacheLayerMixin

from iterpo.models.attention import UnusualAttention, by_products, check_plain, products

__all__ = ["GroupedCache", "grouped_attention"]

_WIDEST = 16
_ROOM = 16
_SPARE = 4  # columns in use for an empty one


class GroupedCache:
    """Grid of one batch; rows are numbered by their place in the running batch."""

    def __init__(self, prompt_of: Sequence[int], lengths: Sequence[int], max_new: int) -> None:
        """An empty cache.

        Args:
            prompt_of: Prompt of each row (r,); every prompt has a row.
            lengths: Tokens of each prompt (u,).
            max_new: Most tokens that a row will add.
        """
        self.prompt_of, self.lengths, self.max_new = list(prompt_of), list(lengths), max_new
        self.steps, self.columns = 0, max(lengths)
        self.lines = _grid(self.prompt_of, self.columns, min(max_new, _ROOM) // 2)
        self.room = self._more()
        """Steps that there is room for."""
        self.layers: list[_Layer] = []
        self.cache: Any = Cache(layers=self.layers)
        """What the model is given."""

    @property
    def width(self) -> int:
        """Slots of a line."""
        return len(self.lines[0])

    @property
    def ends(self) -> tuple[int, int]:
        """Columns in use, and those that there are."""
        return (self.columns + self.steps * self.width, self.columns + self.room * self.width)

    def fill(self, prompts: Sequence[int], prefilled: Any) -> None:
        """Take over the keys of ``prompts``, padded on the right, from another cache."""
        owners = self._owners()
        places = [(i, prompts.index(p)) for i, p in enumerate(owners) if p in prompts]
        if not self.layers:
            self.layers.extend(_Layer(self) for _ in prefilled.layers)
        for layer, found in zip(self.layers, prefilled.layers, strict=True):
            layer.fill(places, found.keys, found.values)

    def start(self) -> None:
        """All prompts are in; steps follow."""
        self._lay_out()
        self._hide()

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows of the running batch only, in this order."""
        place = {row: k for k, row in enumerate(rows)}
        self.lines = [[place.get(row, -1) for row in line] for line in self.lines]
        self.prompt_of = [self.prompt_of[row] for row in rows]
        best = _grid(self.prompt_of, self.columns, self.steps)
        # A new grid costs a copy, about as much as the attention of one step.
        if _cost(best, self.columns, self.steps) < 0.75 * _cost(
            self.lines, self.columns, self.steps
        ):
            self._move(best)
        self._lay_out()

    def step(self) -> None:
        """Another token per row follows."""
        if self.steps == self.room:
            self.room = self._more()
            self._move(_grid(self.prompt_of, self.columns, (self.steps + self.room) // 2))
            self._lay_out()
        before, width = self.ends[0], self.width
        own = torch.eye(width, dtype=torch.bool, device=self.mask.device)
        self.mask[:, :, before : before + width].masked_fill_(own, 0)
        self.steps += 1
        self.masks: dict[int, Tensor] = {}

    def _more(self) -> int:
        """Steps to have room for: columns that are empty cost time too, but less than a copy."""
        further = max(_ROOM, self.columns // (_SPARE * self.width))
        return min(self.max_new, self.steps + further)

    def states_of(self, row: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each layer for a row's prompt and its tokens so far, copied."""
        line, slot = divmod(self.places[row], self.width)
        prompt = self.lengths[self.prompt_of[row]]
        return [layer.of(line, slot, prompt) for layer in self.layers]

    def _owners(self) -> list[int]:
        """The prompt of each line."""
        return [self.prompt_of[max(line)] if max(line) >= 0 else -1 for line in self.lines]

    def _move(self, lines: list[list[int]]) -> None:
        """Change over to another grid of the same rows."""
        slot_of = {row: (i, j) for i, line in enumerate(self.lines) for j, row in enumerate(line)}
        line_of = {prompt: i for i, prompt in enumerate(self._owners())}
        device = self.layers[0].keys.device
        heads = torch.tensor([line_of[self.prompt_of[line[0]]] for line in lines], device=device)
        slots = torch.tensor(
            [[slot_of.get(row, (0, 0)) if row >= 0 else (0, 0) for row in line] for line in lines],
            device=device,
        )
        before, width = self.ends[0], self.width
        columns = max(self.lengths[p] for p in self.prompt_of)
        frames = self.columns, before, width
        self.columns, self.lines = columns, lines
        for layer in self.layers:
            layer.move(heads, slots, frames)
        self._hide()

    def _lay_out(self) -> None:
        """Which row each slot shows, and where each row is."""
        flat = [row for line in self.lines for row in line]
        self.shape = len(self.lines), self.width
        self.plain = flat == list(range(len(self.prompt_of)))
        device = self.layers[0].keys.device
        slot = {row: k for k, row in enumerate(flat)}
        self.places = [slot[row] for row in range(len(self.prompt_of))]
        self.shown = torch.tensor([max(row, 0) for row in flat], device=device)
        self.slots = torch.tensor(self.places, device=device)

    def _hide(self) -> None:
        """The mask (lines, slots, columns): prompts and the tokens so far, each for its own row."""
        keys = self.layers[0].keys
        lengths = torch.tensor(
            [self.lengths[max(p, 0)] for p in self._owners()], device=keys.device
        )
        seen = torch.arange(self.columns, device=keys.device) < lengths[:, None]
        own = torch.eye(self.width, dtype=torch.bool, device=keys.device).repeat(1, self.steps)
        kind = torch.float32 if by_products(keys) else keys.dtype
        self.mask = keys.new_full(
            (len(self.lines), self.width, self.ends[1]), -torch.inf, dtype=kind
        )
        self.mask[:, :, : self.columns].masked_fill_(seen[:, None], 0)
        self.mask[:, :, self.columns : self.ends[0]].masked_fill_(own, 0)
        self.masks = {}

    def mask_for(self, repeats: int) -> Tensor:
        """The mask (lines, 1, repeats x slots, all columns), ``repeats`` rows for each slot."""
        if repeats not in self.masks:
            self.masks[repeats] = self.mask.repeat(1, repeats, 1)[:, None]
        return self.masks[repeats]

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
        """Room for the prompts and the first steps."""
        self.keys, self.values = (
            self._empty(len(self.grid.lines), like=x) for x in (key_states, value_states)
        )
        self.is_initialized = True

    def _empty(self, lines: int, like: Tensor) -> Tensor:
        """Columns behind those in use are hidden, but must be finite."""
        used, room = self.grid.ends
        fresh = like.new_empty(lines, like.shape[1], room, like.shape[3])
        fresh[:, :, used:] = 0
        return fresh

    def fill(self, places: Sequence[tuple[int, int]], keys: Tensor, values: Tensor) -> None:
        """Copy prompts; ``places`` pairs lines of the grid with rows of ``keys``."""
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        lines, rows = (list(x) for x in zip(*places, strict=True))
        width, columns = min(keys.shape[2], self.grid.columns), self.grid.columns
        for kept, new in ((self.keys, keys), (self.values, values)):
            kept[lines, :, :width] = new[rows, :, :width]
            kept[lines, :, width:columns] = 0

    def of(self, line: int, slot: int, prompt: int) -> tuple[Tensor, Tensor]:
        """Keys and values (key heads, n, d) of a prompt of that length and the tokens behind it."""
        grid = self.grid
        said = slice(grid.columns + slot, grid.ends[0], grid.width)
        keys, values = self.keys[line], self.values[line]
        return (
            torch.cat([keys[:, :prompt], keys[:, said]], dim=1),
            torch.cat([values[:, :prompt], values[:, said]], dim=1),
        )

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Write a step's keys and values (r, key heads, 1, d); the attention finds them here."""
        grid = self.grid
        end = grid.ends[0]  # the step is counted before its layers run
        for kept, new in ((self.keys, key_states), (self.values, value_states)):
            kept[:, :, end - grid.width : end] = grid.on_grid(new[:, :, 0]).transpose(1, 2)
        key_states._grouped = self  # type: ignore[attr-defined]
        return key_states, value_states

    def move(self, heads: Tensor, slots: Tensor, frames: tuple[int, int, int]) -> None:
        """Copy to the present grid from one before.

        Args:
            heads: Line before of each line's prompt (n,).
            slots: Line and slot before of each slot (n, width, 2).
            frames: Columns of prompts, columns in use and width before.
        """
        grid, (columns, end, width) = self.grid, frames
        fresh = []
        for kept in (self.keys, self.values):
            new = self._empty(len(heads), like=kept)
            new[:, :, : grid.columns] = kept[heads, :, : grid.columns]
            said = kept[:, :, columns:end]
            said = said.reshape(*said.shape[:2], grid.steps, width, kept.shape[3]).permute(
                0, 3, 1, 2, 4
            )
            moved = said[slots[..., 0], slots[..., 1]]  # (n, width, key heads, steps, d)
            new[:, :, grid.columns : grid.ends[0]] = moved.permute(0, 2, 3, 1, 4).flatten(2, 3)
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


def grouped_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    _value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Attention of one new token per row (r, heads, 1, d) to its prompt and response."""
    check_plain(module, attention_mask, rest)
    layer: _Layer | None = getattr(key, "_grouped", None)
    if layer is None or query.shape[2] != 1:
        raise UnusualAttention(f"{type(module).__name__} does not hand on what its cache gave")
    grid = layer.grid
    asked = grid.on_grid(query.reshape(len(query), layer.keys.shape[1], -1, query.shape[3]))
    asked = asked.permute(0, 2, 3, 1, 4)  # (lines, key heads, queries of each, slots, d)
    scale = asked.shape[4] ** -0.5 if scaling is None else scaling
    if by_products(layer.keys):
        # All columns, hidden ones too: a matrix product of a part would copy it first.
        found = products(asked, layer.keys, layer.values, grid.mask, scale)
    else:
        found = _fused(asked, layer, grid.mask_for(asked.shape[2]), scale)
    return grid.off_grid(found.permute(0, 3, 1, 2, 4)).flatten(1, 2).unsqueeze(1), None


def _fused(asked: Tensor, layer: _Layer, mask: Tensor, scale: float) -> Tensor:
    end = layer.grid.ends[0]
    found = scaled_dot_product_attention(
        asked.flatten(2, 3),
        layer.keys[:, :, :end],
        layer.values[:, :, :end],
        attn_mask=mask[..., :end],
        scale=scale,
    )
    return found.view(asked.shape)


def _cost(lines: Sequence[Sequence[int]], columns: int, steps: float) -> float:
    """Time of a layer's attention; a further slot costs about a third of a line's first."""
    width = len(lines[0])
    return len(lines) * (1 + width / 3) * (columns + width * steps)


def _grid(prompt_of: Sequence[int], columns: int, steps: float) -> list[list[int]]:
    """The row in each slot (-1: none) of each line, such that attention costs least."""
    rows: dict[int, list[int]] = {}
    for row, prompt in enumerate(prompt_of):
        rows.setdefault(prompt, []).append(row)
    most = max(map(len, rows.values()))
    grids = []
    for width in range(1, min(_WIDEST, most) + 1):
        lines = [own[i : i + width] for own in rows.values() for i in range(0, len(own), width)]
        grids.append([line + [-1] * (width - len(line)) for line in lines])
    return min(grids, key=lambda lines: _cost(lines, columns, steps))
