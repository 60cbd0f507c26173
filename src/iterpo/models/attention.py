"""attending: a model attends by a function of ours for a while, if its attention is plain.

Plain means queries, keys, values and a causal mask. What a model's class and cache tell of it is
asked before; what only its layers tell is noticed at the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.cache_utils import DynamicCache, DynamicLayer

__all__ = [
    "UnusualAttention",
    "attending",
    "by_products",
    "check_plain",
    "keeps_prompts",
    "plain_attention",
    "products",
]

_NEUTRAL = {"dropout", "scaling", "is_causal", "position_ids", "use_cache", "cache_position"}


class UnusualAttention(Exception):  # noqa: N818 - a signal between modules, never shown
    """The model's attention is more than queries, keys, values and a causal mask."""


def plain_attention(model: Any) -> bool:
    """Whether a model, or its body, keeps all of its prompts and can be told how to attend."""
    return (
        bool(getattr(model, "_supports_attention_backend", False))
        and isinstance(getattr(model.config, "_attn_implementation", None), str)
        and getattr(model.config, "attn_logit_softcapping", None) is None
        and keeps_prompts(model.config)
    )


def keeps_prompts(config: Any) -> bool:
    """Whether such a model's cache keeps all of a prompt (a sliding window, say, does not)."""
    layers = DynamicCache(config=config).layers
    return bool(layers) and all(type(layer) is DynamicLayer for layer in layers)


@contextmanager
def attending(model: Any, function: Callable[..., Any]) -> Iterator[None]:
    """The model attends by ``function``, as transformers' interface has it; then as before."""
    name, config = f"iterpo_{function.__name__}", model.config
    AttentionInterface.register(name, function)
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


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


def by_products(keys: Tensor) -> bool:
    """On CPUs torch's fused attention is slow in 16 bits, also where it leaves the future out."""
    return keys.device.type == "cpu" and keys.dtype != torch.float32


def products(query: Tensor, keys: Tensor, values: Tensor, unseen: Tensor, scale: float) -> Tensor:
    """Attention as two matrix products, in which a key head's queries are rows of one.

    Args:
        query: (b, key heads, queries per key head, q, d).
        keys: (b, key heads, n, d).
        values: (b, key heads, n, d).
        unseen: Added to the scores, float32 (b or 1, q, n).
        scale: Of the scores.

    Returns:
        As the queries.
    """
    scores = torch.matmul(query.flatten(2, 3), keys.transpose(2, 3))
    scores = scores.view(*query.shape[:4], -1).float().mul_(scale).add_(unseen[:, None, None])
    weights = torch.softmax(scores, dim=-1).to(query.dtype)
    return torch.matmul(weights.flatten(2, 3), values).view(query.shape)
