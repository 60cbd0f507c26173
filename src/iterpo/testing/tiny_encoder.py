"""A tiny random RoBERTa in ordinary transformers format, for critics in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from iterpo.models.hub import silent_loading

__all__ = ["tiny_encoder"]


def tiny_encoder(folder: Path, seed: int = 0, **config: Any) -> Path:
    """Write a random RoBERTa (d = 16, 1 layer, 62 tokens, byte-level) and return its folder.

    Args:
        folder: Where to write; made if absent.
        seed: Seed of the random weights; the same seed gives the same bytes.
        config: Overrides of ``RobertaConfig``.
    """
    import torch
    from transformers import RobertaConfig, RobertaForMaskedLM

    tokenizer = _tokenizer()
    values: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,  # two of which no token gets
        "type_vocab_size": 1,
        "initializer_range": 0.2,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = RobertaForMaskedLM(RobertaConfig(**(values | config)))
    folder.mkdir(parents=True, exist_ok=True)
    with silent_loading():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["<s>", "<pad>", "</s>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*special, *alphabet])}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<s>",  # noqa: S106
        cls_token="<s>",  # noqa: S106
        pad_token="<pad>",  # noqa: S106
        eos_token="</s>",  # noqa: S106
        sep_token="</s>",  # noqa: S106
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )
