"""packed_states: prompts and the responses to them as one row of tokens, without padding or copies.

Each prompt stands in the row once, its responses follow it. A token sees its own response up to
itself and the prompt before it, so every response gets the numbers that it would get alone, and
no key or value is ever copied per response.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from iterpo.models.attention import attending, check_plain
from iterpo.models.folded import folded

__all__ = ["packed_attention", "packed_states"]

_AT_ONCE = {"cpu": 256}  # response tokens, where small blocks are no slower
_MOST = 2048


@dataclass(frozen=True, slots=True)
class _Group:
    """Where a prompt and its responses lie in the row."""

    start: int
    prompt: int
    lengths: tuple[int, ...]
    masks: dict[tuple[int, torch.dtype], Tensor] = field(default_factory=dict)

    @property
    def said(self) -> int:
        return self.start + self.prompt

    @property
    def end(self) -> int:
        return self.said + sum(self.lengths)

    def blocks(self, like: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Where a few responses lie, and additive (r, p + r): what their tokens do not see.

        A few at a time, since scores of all with all would grow with the square of their number.
        """
        most = _AT_ONCE.get(like.device.type, _MOST)
        blocks: list[list[int]] = []
        for n in self.lengths:
            if blocks and sum(blocks[-1]) + n <= most:
                blocks[-1].append(n)
            else:
                blocks.append([n])
        at = self.said
        for lengths in blocks:
            place = slice(at, at + sum(lengths))
            if (at, like.dtype) not in self.masks:
                self.masks[at, like.dtype] = self._mask(lengths, like)
            yield place, self.masks[at, like.dtype]
            at = place.stop

    def _mask(self, lengths: Sequence[int], like: Tensor) -> Tensor:
        n, device = sum(lengths), like.device
        counts = torch.tensor(lengths, device=device)
        owner = torch.repeat_interleave(torch.arange(len(counts), device=device), counts)
        seen = (owner[:, None] == owner[None]).tril()
        hidden = torch.zeros(n, self.prompt + n, dtype=like.dtype, device=device)
        hidden[:, self.prompt :].masked_fill_(~seen, -torch.inf)
        return hidden


_groups: ContextVar[tuple[_Group, ...]] = ContextVar("groups")


def packed_states(
    decoder: Any, prompts: Sequence[Tensor], responses: Sequence[Sequence[Tensor]]
) -> Tensor:
    """Hidden states of the final layer at every token of the row.

    Args:
        decoder: Transformer body, adapters included; see ``attention.plain_attention``.
        prompts: Token ids (p,) of each prompt, at least one.
        responses: For each prompt, the token ids (r,) of its responses; may be none.

    Returns:
        (n, d), in the order: first prompt, its responses, second prompt, …

    Raises:
        UnusualAttention: if a layer asks for more than the groups can tell it.
    """
    row, positions, groups = [], [], []
    start = 0
    for prompt, mine in zip(prompts, responses, strict=True):
        group = _Group(start, len(prompt), tuple(len(r) for r in mine if len(r)))
        start = group.end
        groups.append(group)
        row += [prompt, *mine]
        positions.append(torch.arange(len(prompt), device=prompt.device))
        positions += [torch.arange(len(r), device=r.device) + len(prompt) for r in mine]
    token = _groups.set(tuple(groups))
    try:
        with attending(decoder, packed_attention), folded(decoder):
            out = decoder(
                input_ids=torch.cat(row)[None],
                position_ids=torch.cat(positions)[None],
                use_cache=False,
            )
    finally:
        _groups.reset(token)
    states: Tensor = out.last_hidden_state[0]
    return states


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention within each group: query (1, h, n, d), key and value (1, h or fewer, n, d)."""
    check_plain(module, attention_mask, options)
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    attend = torch.nn.functional.scaled_dot_product_attention
    given: dict[str, Any] = {"dropout_p": dropout, "scale": scaling}
    found = []
    for group in _groups.get():
        own = slice(group.start, group.said)
        q, k, v = (x[:, :, own] for x in (query, key, value))
        found.append(attend(q, k, v, is_causal=True, **given))
        for block, mask in group.blocks(query):
            k, v = (
                x[:, :, group.start : block.stop]
                if block.start == group.said
                else torch.cat([x[:, :, own], x[:, :, block]], dim=2)
                for x in (key, value)
            )
            found.append(attend(query[:, :, block], k, v, attn_mask=mask, **given))
    return torch.cat(found, dim=2).transpose(1, 2).contiguous(), None
