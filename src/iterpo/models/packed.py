"""packed_states: prompts and the responses to them as one row of tokens, without padding or copies.

Each prompt stands in the row once, its responses follow it. A token sees its own response up to
itself and the prompt before it, so every response gets the numbers that it would get alone, and
no key or value is ever copied per response.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from iterpo.models.folded import folded

__all__ = ["UnusualAttention", "can_pack", "check_plain", "packed_states"]

_NAME = "iterpo_packed"
_NEUTRAL = {"dropout", "scaling", "is_causal", "position_ids", "use_cache", "cache_position"}


class UnusualAttention(Exception):  # noqa: N818 - a signal between modules, never shown
    """The model's attention is more than queries, keys, values and a causal mask."""


def check_plain(module: Any, attention_mask: Tensor | None, options: dict[str, Any]) -> None:
    """Refuse what an attention that makes its own causal mask was asked for beyond that.

    Args:
        module: The attention layer.
        attention_mask: None, unless the model makes masks of its own.
        options: What else the layer asked for.

    Raises:
        UnusualAttention: if it is anything.
    """
    beyond = sorted(k for k, v in options.items() if k not in _NEUTRAL and v is not None)
    if attention_mask is not None:
        beyond.append("a mask of its own")
    if beyond:
        raise UnusualAttention(f"{type(module).__name__} asks for {', '.join(beyond)}")


@dataclass(frozen=True, slots=True)
class _Group:
    """Where a prompt and its responses lie in the row."""

    start: int
    prompt: int
    lengths: tuple[int, ...]
    masks: dict[torch.dtype, Tensor] = field(default_factory=dict)

    @property
    def said(self) -> int:
        return self.start + self.prompt

    @property
    def end(self) -> int:
        return self.said + sum(self.lengths)

    def mask(self, like: Tensor) -> Tensor:
        """Additive (r, p + r): what each of the r response tokens does not see."""
        if like.dtype not in self.masks:
            device = like.device
            n = self.end - self.said
            counts = torch.tensor(self.lengths, device=device)
            owner = torch.repeat_interleave(torch.arange(len(counts), device=device), counts)
            seen = (owner[:, None] == owner[None]).tril()
            hidden = torch.zeros(n, self.prompt + n, dtype=like.dtype, device=device)
            hidden[:, self.prompt :].masked_fill_(~seen, -torch.inf)
            self.masks[like.dtype] = hidden
        return self.masks[like.dtype]


_groups: ContextVar[tuple[_Group, ...]] = ContextVar("groups")


def can_pack(decoder: Any) -> bool:
    """Whether the body's attention can be told which tokens see which.

    Models whose cache does not keep all of a prompt are for the caller to leave out.
    """
    config = decoder.config
    return (
        bool(getattr(decoder, "_supports_attention_backend", False))
        and getattr(config, "attn_logit_softcapping", None) is None
        and isinstance(getattr(config, "_attn_implementation", None), str)
    )


def packed_states(
    decoder: Any, prompts: Sequence[Tensor], responses: Sequence[Sequence[Tensor]]
) -> Tensor:
    """Hidden states of the final layer at every token of the row.

    Args:
        decoder: Transformer body, adapters included; see ``can_pack``.
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
    with _attending(decoder.config, tuple(groups)), folded(decoder):
        out = decoder(
            input_ids=torch.cat(row)[None],
            position_ids=torch.cat(positions)[None],
            use_cache=False,
        )
    states: Tensor = out.last_hidden_state[0]
    return states


@contextmanager
def _attending(config: Any, groups: tuple[_Group, ...]) -> Iterator[None]:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(_NAME, _attention)
    before, token = config._attn_implementation, _groups.set(groups)
    config._attn_implementation = _NAME
    try:
        yield
    finally:
        config._attn_implementation = before
        _groups.reset(token)


def _attention(
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
        if group.lengths:
            everything = slice(group.start, group.end)
            q = query[:, :, group.said : group.end]
            k, v = (x[:, :, everything] for x in (key, value))
            found.append(attend(q, k, v, attn_mask=group.mask(q), **given))
    return torch.cat(found, dim=2).transpose(1, 2).contiguous(), None
