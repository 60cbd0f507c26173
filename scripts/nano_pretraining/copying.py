"""Initial weights with which a small Llama learns to copy within hundreds of steps, not thousands.

Copying takes two steps: a head of the first layer notes for every position which token stood before
it; a head of the second finds where the present token stood before, and takes what followed there.
Trained from noise, both appear late, since each is useless without the other. Here the first one
is built in by the rotary positions, and the second is started in the right direction.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from iterpo.domain import derive

__all__ = ["start_copying"]

_HEADS = 2
_CONSTANT = 0.12
"""Entry 0 of every embedding: what queries and keys without content are made of."""
_SHARPNESS = 7.0
_PAIRS = 6
"""Fastest rotary frequencies: they tell neighbours apart. The slow rest can hold content."""


def start_copying(model: LlamaForCausalLM, seed: int) -> None:
    """Write the heads into the first two layers, in place."""
    generator = torch.Generator().manual_seed(derive(seed, "nano", "copying"))
    with torch.no_grad():
        embeddings = model.model.embed_tokens.weight
        embeddings[:, 0] = _CONSTANT  # the same for all: tied logits don't notice
        size = float(embeddings.pow(2).mean(1).sqrt().mean())
        ends = _look_back(model, size, generator)
        _look_up(model, ends[0], generator)


def _look_back(
    model: LlamaForCausalLM, size: float, generator: torch.Generator
) -> list[tuple[Tensor, Tensor]]:
    """Layer 1: attend to the token before, whatever it is; where it is read and written."""
    attention = model.model.layers[0].self_attn
    width, head = model.config.hidden_size, attention.head_dim
    turn = model.model.rotary_emb.inv_freq[:_PAIRS]
    strength = _SHARPNESS * size / _CONSTANT  # the norm before the layer scales the constant
    query, key = torch.zeros(head), torch.zeros(head)
    query[:_PAIRS] = strength
    key[:_PAIRS] = strength * torch.cos(turn)
    key[head // 2 : head // 2 + _PAIRS] = strength * torch.sin(turn)
    ends = []
    for number in range(_HEADS):
        rows = slice(number * head, (number + 1) * head)
        attention.q_proj.weight[rows] = 0
        attention.k_proj.weight[rows] = 0
        attention.q_proj.weight[rows, 0] = query
        attention.k_proj.weight[rows, 0] = key
        reads, writes = _frame(width, head, generator).T.clone(), _frame(width, head, generator)
        reads[:, 0] = 0
        attention.v_proj.weight[rows] = reads
        attention.o_proj.weight[:, rows] = 0.045 * writes
        ends.append((reads, writes))
    return ends


def _look_up(
    model: LlamaForCausalLM, end: tuple[Tensor, Tensor], generator: torch.Generator
) -> None:
    """Layer 2: attend to where the present token stood before, and write what is found there."""
    attention = model.model.layers[1].self_attn
    width, head = model.config.hidden_size, attention.head_dim
    reads, writes = end
    slow = [i for i in range(head) if i % (head // 2) >= _PAIRS]
    for number in range(_HEADS):
        rows = slice(number * head, (number + 1) * head)
        mixed = torch.zeros(head, head)
        order = torch.randperm(head, generator=generator) if number else torch.arange(head)
        mixed[slow] = torch.eye(head)[order[: len(slow)]]
        attention.q_proj.weight[rows] = 1.5 * mixed @ reads
        attention.k_proj.weight[rows] = 2.25 * mixed @ writes.T
        frame = _frame(width, head, generator)
        attention.v_proj.weight[rows] = frame.T
        attention.o_proj.weight[:, rows] = 0.12 * frame


def _frame(width: int, head: int, generator: torch.Generator) -> Tensor:
    """Orthonormal columns, shape (width, head)."""
    frame: Tensor = torch.linalg.qr(torch.randn(width, head, generator=generator))[0]
    return frame
