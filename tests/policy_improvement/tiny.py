"""A tiny random chat model in a folder, and states for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from iterpo.domain import Message, State
from iterpo.models.backbone import Backbone

MakeBackbone = Callable[[], Backbone]

SPECIAL = ["<pad>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
WORDS = [f"w{i}" for i in range(20)]
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|> {{ m['content'] }} <|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_model(folder: Path, dtype: torch.dtype = torch.float32, spread: float = 0.2) -> None:
    """Random weights; ``spread`` is their deviation, large enough for uneven probabilities."""
    vocab = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
    core = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|end|>",
        pad_token="<pad>",
        additional_special_tokens=SPECIAL[2:],
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(vocab),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=spread,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)


def state(n: int, *, words: int = 3, turns: int = 1) -> State:
    """State number n; after ``turns`` partner messages of ``words`` words each."""
    said = [
        Message("user" if i % 2 == 0 else "assistant", " ".join([f"w{(n + i) % 20}"] * words))
        for i in range(2 * turns - 1)
    ]
    return State(f"c{n}", f"k{n}", turns, (Message("system", "w1 w2"), *said))
