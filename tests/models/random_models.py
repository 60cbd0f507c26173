"""Tiny random models of any architecture, with fewer heads of keys than of queries."""

from __future__ import annotations

from typing import Any

import torch
import transformers

SMALL = {
    "vocab_size": 220,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def random_model(kind: str, *, attention: str | None = None, **more: Any) -> Any:
    """Always the same weights for the same arguments."""
    config = getattr(transformers, f"{kind}Config")(**(SMALL | more))
    if attention is not None:
        config._attn_implementation = attention
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(transformers, f"{kind}ForCausalLM")(config).eval()
