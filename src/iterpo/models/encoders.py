"""Encoder: a text model that is trained to stand for a whole text by one of its hidden states.

Critics that read text by a model of their own (ArCHer) begin with one. Bidirectional models such
as RoBERTa are read at their first token (CLS), causal ones at the last real token. Weights are in
float32, since they are trained at step sizes that bfloat16 would round away.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from iterpo.domain import Message, Response
from iterpo.errors import ModelError
from iterpo.models import hub
from iterpo.models.backbone import Backbone, inner, merge_adapter
from iterpo.models.padding import alike, pad

__all__ = ["Encoder", "check_encoder", "load_encoder", "policy_encoder", "read"]

_ENDLESS = 10**9


@dataclass(frozen=True, slots=True)
class Encoder:
    """A text model and how texts become its tokens."""

    model: Any
    """transformers model without a head; its parameters are trained by whoever asked for it."""
    observation_ids: Callable[[Sequence[Message]], list[int]]
    """Token ids of a state."""
    action_ids: Callable[[Response], list[int]]
    """Token ids of a response, by itself."""
    first: bool
    """Whether the first token stands for the text (CLS); else the last."""
    longest: int
    """Most tokens that it reads."""
    width: int
    """Size d of a hidden state."""
    fill: int
    """Id that padding is made of."""
    device: torch.device
    """Where the weights lie."""


def check_encoder(name: str) -> None:
    """Find out whether an encoder of this name can be had, without reading any weights.

    Raises:
        UnknownNameError: if the name is no embedded model, folder or hub id.
        ModelError: if it can't be fetched, or is no encoder.
    """
    _config(name)


def load_encoder(name: str, device: torch.device, max_tokens: int | None = None) -> Encoder:
    """An encoder by name, with all weights trainable.

    Args:
        name: Local folder, hub id, or embedded model; see ``hub.resolve``.
        device: Where to compute.
        max_tokens: Read no more than that; None: all that it can.

    Raises:
        UnknownNameError: if the name is none of these.
        ModelError: if the model can't be used.
    """
    from transformers import AutoModel, AutoTokenizer
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

    path, config = _config(name)
    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    try:
        with hub.silent_loading():
            tokenizer = AutoTokenizer.from_pretrained(path, **options)
            model, found = AutoModel.from_pretrained(
                path, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **options
            )
    except Exception as error:
        raise ModelError(f"encoder {name!r}: {type(error).__name__}: {error}") from error
    if absent := sorted(k for k in found["missing_keys"] if not k.startswith("pooler.")):
        raise ModelError(
            f"encoder {name!r} lacks {len(absent)} of its weights (first: {absent[0]}); they would "
            "be drawn at random. Fetch it again, or name another one."
        )
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # unused, and random in many checkpoints
    longest = min(_longest(model, tokenizer), max_tokens or _ENDLESS)

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, truncation=True, max_length=longest)["input_ids"])

    tokenizer.truncation_side = "left"  # what was said last matters most
    return Encoder(
        model.to(device).requires_grad_(True),
        lambda messages: ids("\n".join(f"{m.role}: {m.content}" for m in messages)),
        lambda response: ids(response.text),
        first=type(config) in MODEL_FOR_MASKED_LM_MAPPING,
        longest=longest,
        width=int(config.hidden_size),
        fill=int(tokenizer.pad_token_id or 0),
        device=device,
    )


def policy_encoder(backbone: Backbone, max_tokens: int | None = None) -> Encoder:
    """A copy of a policy's weights as an encoder: the last hidden state of its chat prompts.

    Raises:
        ModelError: for a 4-bit policy, whose weights can't be trained.
    """
    if backbone.quantized:
        raise ModelError("a 4-bit policy can't be trained as an encoder; load it in 16 or 32 bits")
    merged = backbone.policy.adapter is not None
    model = merge_adapter(backbone) if merged else copy.deepcopy(inner(backbone.model))
    model = model.get_decoder().float()
    return Encoder(
        model.requires_grad_(True),
        backbone.chat.prompt_ids,
        backbone.chat.response_token_ids,
        first=False,
        longest=min(backbone.context_length, max_tokens or _ENDLESS),
        width=int(inner(backbone.model).config.get_text_config().hidden_size),
        fill=int(backbone.tokenizer.pad_token_id or 0),
        device=backbone.device,
    )


def read(encoder: Encoder, model: nn.Module, texts: Sequence[Sequence[int]]) -> Tensor:
    """One hidden state for each text: (n, d) in float32, texts of like length in one pass.

    Args:
        encoder: How to read.
        model: ``encoder.model``, or a copy of it with other weights.
        texts: n texts as token ids; those beyond ``longest`` lose their beginning.
    """
    cut = [list(ids)[-encoder.longest :] or [encoder.fill] for ids in texts]
    batches = alike([len(ids) for ids in cut])
    found = torch.cat([_read(encoder, model, [cut[i] for i in batch]) for batch in batches])
    places = torch.tensor([i for batch in batches for i in batch], device=found.device)
    return found[places.argsort()]


def _read(encoder: Encoder, model: nn.Module, texts: Sequence[Sequence[int]]) -> Tensor:
    ids, mask = (x.to(encoder.device) for x in pad(texts, fill=encoder.fill))
    hidden: Tensor = model(input_ids=ids, attention_mask=mask).last_hidden_state  # (n, longest, d)
    if encoder.first:
        return hidden[:, 0].float()
    return hidden[torch.arange(len(texts), device=hidden.device), mask.sum(dim=1) - 1].float()


def _config(name: str) -> tuple[Any, Any]:
    from transformers import AutoConfig

    path = hub.resolve(name).path
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise ModelError(f"encoder {name!r}: {type(error).__name__}: {error}") from error
    if config.is_encoder_decoder or not hasattr(config, "hidden_size"):
        raise ModelError(
            f"encoder {name!r} is of type {config.model_type!r}; accepted: models with one stack "
            "of layers, e.g. RoBERTa, BERT, or a causal language model"
        )
    return path, config


def _longest(model: Any, tokenizer: Any) -> int:
    positions = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    # RoBERTa counts positions from the id of its padding token on.
    padding = getattr(positions, "padding_idx", None)
    used = 0 if padding is None else padding + 1
    known = int(getattr(model.config, "max_position_embeddings", 0) or _ENDLESS)
    return min(known - used, int(min(tokenizer.model_max_length, _ENDLESS)))
