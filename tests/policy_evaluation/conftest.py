"""A tiny random model behind the attributes of a backbone, and conversations for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from iterpo.domain import (
    Conversation,
    Ending,
    Message,
    Outcome,
    PolicyRef,
    Response,
    Role,
    Sampled,
    Sampling,
    Turn,
)

# Padding and the end of a turn share an id on purpose: whoever looks for "the first pad" to find
# the end of a sequence finds the end of an earlier turn instead.
EOS = 0
ROLES = {"system": 1, "user": 2, "assistant": 3}


@dataclass
class ToyChat:
    """Characters as tokens; every message is <role> text <eos>."""

    flip_history: bool = False
    """True breaks the prefix property: earlier turns are rendered upside down."""

    def encode(self, text: str) -> list[int]:
        return [4 + ord(c) % 90 for c in text]

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        out: list[int] = []
        for message in messages:
            ids = list(message.token_ids or self.encode(message.content))
            if self.flip_history:
                ids = ids[::-1]
            out += [ROLES[message.role], *ids]
            if ids[-1] != EOS:
                out.append(EOS)
        return [*out, ROLES["assistant"]]

    def response_token_ids(self, response: Response) -> list[int]:
        if response.token_ids is not None:
            return list(response.token_ids)
        return [*self.encode(response.text), EOS]


@dataclass
class ToyBackbone:
    model: LlamaForCausalLM
    chat: ToyChat = field(default_factory=ToyChat)
    policy: PolicyRef = field(default_factory=lambda: PolicyRef("toy", "0" * 64))
    tokenizer: Any = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    context_length: int = 512
    dtype: torch.dtype = torch.float32
    quantized: bool = False
    critic: str | None = None

    @property
    def vocabulary(self) -> int:
        return int(self.model.config.vocab_size)


def build_model(dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=96,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=512,
                pad_token_id=EOS,
                eos_token_id=EOS,
                attention_dropout=0.3,  # would show if the backbone were left in training mode
            )
        )
    return model.to(dtype).train()


@pytest.fixture
def make_backbone() -> Callable[..., ToyBackbone]:
    def make(dtype: torch.dtype = torch.float32, **changes: Any) -> ToyBackbone:
        return ToyBackbone(build_model(dtype), dtype=dtype, **changes)

    return make


@pytest.fixture
def backbone(make_backbone: Callable[..., ToyBackbone]) -> ToyBackbone:
    return make_backbone()


@pytest.fixture
def talk() -> Callable[..., Conversation]:
    """A conversation: opening, then partner and agent by turns."""

    def make(
        index: int,
        n_actions: int = 3,
        reward: float | None = 1.0,
        *,
        text_only: bool = False,
        reminder: str | None = None,
        words: Sequence[str] = (),
        **changes: Any,
    ) -> Conversation:
        turns = [Turn(Role.AGENT, "Hi", scripted=True)]
        for t in range(n_actions):
            turns.append(Turn(Role.PARTNER, f"offer {index * 7 + t}"))
            text = words[t] if t < len(words) else f"I keep {index * 13 + t * 5}"
            # Sampled ids that no tokenizer would give for this text.
            ids = (50, *ToyChat().encode(text), EOS)
            sampled = Sampled(ids, (-0.5,) * len(ids), Sampling(), "", 0, "", "stop")
            turns.append(Turn(Role.AGENT, text, sampled=None if text_only else sampled))
        ending = Ending.REFUSED if reward == 0 else Ending.AGREED
        facts: dict[str, Any] = {
            "id": f"c{index}",
            "kernel_id": f"k{index // 2}",
            "environment": "toy",
            "turns": tuple(turns),
            "outcome": Outcome(ending, reward, closing_message=len(turns) - 1),
            "system": "Play.",
            "reminder": reminder,
        }
        return Conversation(**{**facts, **changes})

    return make
