"""Hidden states of responses whose prompts run through the model once, however many share them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from iterpo.models.backbone import Backbone, frozen
from iterpo.models.padding import pad

__all__ = ["can_share", "shared_states"]


def can_share(backbone: Backbone) -> bool:
    """Whether this model's cache keeps all of a prompt (a sliding window, say, does not)."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    layers = DynamicCache(config=backbone.model.config).layers
    return bool(layers) and all(type(layer) is DynamicLayer for layer in layers)


def shared_states(
    backbone: Backbone,
    prompts: Sequence[Sequence[int]],
    index: Sequence[int],
    responses: Sequence[Sequence[int]],
) -> Tensor:
    """Hidden states of the frozen policy's final layer at the responses' tokens.

    Equal, up to rounding, to ``backbone.hidden_states`` of each prompt with its response.

    Args:
        backbone: The policy; adapters in training are bypassed.
        prompts: Distinct prompts (u), each of at least one token.
        index: Prompt of each response (b).
        responses: Token ids of each response (b), at least one token.

    Returns:
        Hidden states (b, longest response, d) in the model's dtype; what lies behind the end of a
        response is meaningless.
    """
    device = backbone.device
    padded = *pad(prompts, "left"), *pad(responses)  # the responses follow the prompts at once
    before, seen, after, said = (x.to(device) for x in padded)
    places = torch.tensor(index, device=device)
    with frozen(backbone), torch.autocast(device.type, enabled=False):
        states: Tensor = _two_passes(_decoder(backbone.model), before, seen, after, said, places)
    return states


def _two_passes(
    decoder: Any, before: Tensor, seen: Tensor, after: Tensor, said: Tensor, places: Tensor
) -> Any:
    from transformers import DynamicCache

    cache = DynamicCache(config=decoder.config)
    name = "cache" if "cache" in inspect.signature(decoder.forward).parameters else None
    kept = {name or "past_key_values": cache, "use_cache": True}
    positions = (seen.cumsum(-1) - 1).clamp(min=0)
    decoder(input_ids=before, attention_mask=seen, position_ids=positions, **kept)
    cache.batch_select_indices(places)
    mask = torch.cat([seen[places], said], dim=1)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, seen.shape[1] :]
    out = decoder(input_ids=after, attention_mask=mask, position_ids=positions, **kept)
    return out.last_hidden_state


def _decoder(model: Any) -> Any:
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner.get_decoder()
