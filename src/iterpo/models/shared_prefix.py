"""Hidden states of responses whose prompts run through the model once, however many share them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from iterpo.models.attention import UnusualAttention, plain_attention
from iterpo.models.backbone import Backbone, frozen, inner
from iterpo.models.kept_states import keep
from iterpo.models.packed import packed_states
from iterpo.models.padding import pad

__all__ = ["cache_argument", "shared_states", "states_behind", "two_passes"]


def cache_argument(module: Any) -> str:
    """What the model or its body calls the key/value cache; renamed within transformers 5."""
    accepted = inspect.signature(type(module).forward).parameters
    return "cache" if "cache" in accepted else "past_key_values"


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
        response is meaningless. Those that predict the responses are offered to ``keep``.
    """
    device = backbone.device
    padded = *pad(prompts, "left"), *pad(responses)  # the responses follow the prompts at once
    before, seen, after, said = (x.to(device) for x in padded)
    places = torch.tensor(index, device=device)
    mask = torch.cat([seen[places], said], dim=1)
    decoder = inner(backbone.model).get_decoder()
    with frozen(backbone), torch.autocast(device.type, enabled=False):
        states = states_behind(decoder, (before, seen), places, after, mask)
    for place, response, own in zip(index, responses, states, strict=True):
        keep(backbone, prompts[place], response, own[: len(response)])
    return states[:, 1:]


def states_behind(
    decoder: Any, before: tuple[Tensor, Tensor], index: Tensor, after: Tensor, mask: Tensor
) -> Tensor:
    """As ``two_passes``, without padding or copies wherever the model's attention allows it."""
    if plain_attention(decoder):
        try:
            return _packed(decoder, before, index, after, mask)
        except UnusualAttention:  # which no attribute of the model tells
            pass
    return two_passes(decoder, before, index, after, mask)


def _packed(
    decoder: Any, before: tuple[Tensor, Tensor], index: Tensor, after: Tensor, mask: Tensor
) -> Tensor:
    prompts, seen = before
    width = prompts.size(1)
    heads, tails = seen.sum(1).tolist(), mask[:, width:].sum(1).tolist()
    rows: list[list[int]] = [[] for _ in heads]  # of each prompt
    for i, place in enumerate(index.tolist()):
        rows[place].append(i)
    states = packed_states(
        decoder,
        [prompt[width - n :] for prompt, n in zip(prompts, heads, strict=True)],
        [[after[i, : tails[i]] for i in mine] for mine in rows],
    )
    # Places in the row: the prompt's last token, then the response's; behind its end any will do.
    source = torch.zeros(len(after), 1 + after.size(1), dtype=torch.long)
    at = 0
    for head, mine in zip(heads, rows, strict=True):
        at += head
        last = at - 1
        for i in mine:
            source[i, 0] = last
            source[i, 1 : 1 + tails[i]] = torch.arange(at, at + tails[i])
            at += tails[i]
    found = states.index_select(0, source.flatten().to(states.device))
    return found.view(*source.shape, -1)


def two_passes(
    decoder: Any, before: tuple[Tensor, Tensor], index: Tensor, after: Tensor, mask: Tensor
) -> Tensor:
    """Hidden states of responses: every prompt runs through once, then the responses behind it.

    Args:
        decoder: Transformer body, adapters included.
        before: Token ids and attention mask (u, p) of distinct prompts, padded on the left.
        index: Prompt (b,) of each response.
        after: Token ids (b, c) of the responses, padded on the right; c may be 0.
        mask: (b, p + c), 1 on the real tokens of a prompt and its response.

    Returns:
        Final layer's states (b, 1 + c, d): at the prompt's last token, then at each of ``after``.
    """
    from transformers import DynamicCache

    prompts, seen = before
    cache = DynamicCache(config=decoder.config)
    kept = {cache_argument(decoder): cache, "use_cache": True}
    positions = (seen.cumsum(1) - 1).clamp(min=0)
    first = decoder(input_ids=prompts, attention_mask=seen, position_ids=positions, **kept)
    last: Tensor = first.last_hidden_state[index, -1:]  # (b, 1, d)
    if after.size(1) == 0:
        return last
    cache.batch_select_indices(index)
    positions = (mask.cumsum(1) - 1).clamp(min=0)[:, seen.size(1) :]
    rest = decoder(input_ids=after, attention_mask=mask, position_ids=positions, **kept)
    return torch.cat([last, rest.last_hidden_state], dim=1)
