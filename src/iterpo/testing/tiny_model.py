"""A tiny random chat model in ordinary transformers format, for tests that must not download.

Its tokenizer is byte-level with a few merges (so that some id sequences do not survive decoding and
encoding again), its template is of the ``<|im_start|>role`` family, and its pad token is its stop
token, which is the case that naive masks and heads get wrong.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from iterpo.models.hub import silent_loading

__all__ = ["CHAT_TEMPLATE", "tiny_model"]

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_SPECIAL = ("<|im_end|>", "<|im_start|>")
_MERGES = (
    ("h", "e"),
    ("l", "l"),
    ("he", "ll"),
    ("hell", "o"),
    ("u", "s"),
    ("us", "er"),
    ("e", "r"),
    ("o", "k"),
    ("Ġ", "t"),
    ("Ġt", "he"),
)


def tiny_model(
    folder: Path,
    seed: int = 0,
    *,
    chat_template: str | None = CHAT_TEMPLATE,
    generation_config: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """Write a random Llama model (d = 32, 2 layers, about 35k weights) and return its folder.

    Args:
        folder: Where to write; made if absent.
        seed: Seed of the random weights; the same seed gives the same bytes.
        chat_template: Jinja template; None writes a model without one.
        generation_config: Sampling defaults that the checkpoint is to ship.
        config: Overrides of ``LlamaConfig``, e.g. ``max_position_embeddings=64``.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _tokenizer(chat_template)
    stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
    values: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,  # wide enough for a distribution that is far from uniform
        "bos_token_id": None,
        "eos_token_id": stop,
        "pad_token_id": stop,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**(values | config)))
    folder.mkdir(parents=True, exist_ok=True)
    with silent_loading():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if generation_config is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation_config))
    return folder


def _tokenizer(chat_template: str | None) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("e", "r"), *(m for m in _MERGES if m != ("e", "r"))]
    vocab = {token: i for i, token in enumerate([*alphabet, *("".join(m) for m in merges)])}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|im_end|>",  # noqa: S106
        pad_token="<|im_end|>",  # noqa: S106
        additional_special_tokens=list(_SPECIAL),
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )
    tokenizer.chat_template = chat_template
    return tokenizer
