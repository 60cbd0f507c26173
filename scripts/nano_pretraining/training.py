"""Training of `nano` from scratch: rows of tokens in, a small Llama out; seeded and resumable."""

from __future__ import annotations

import hashlib
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from iterpo.domain import derive
from nano_pretraining.copying import start_copying
from nano_pretraining.corpus import Lesson
from nano_pretraining.tokenizer import CONTEXT, END_OF_TURN, PAD, START_OF_TURN

__all__ = ["Progress", "Row", "Shape", "TrainingPlan", "build_model", "encode_row", "train"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of the transformer."""

    hidden: int = 160
    """Width of the residual stream."""
    layers: int = 4
    """Number of blocks."""
    heads: int = 5
    """Attention heads."""
    mlp: int = 448
    """Inner width of the gated MLP."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How long and how fast."""

    seed: int = 0
    """Seed of the initial weights and of the order of the rows."""
    steps: int = 2400
    """Optimiser steps."""
    batch_rows: int = 24
    """Rows per step."""
    lr: float = 6e-3
    """Peak learning rate of Muon; linear warm-up, then cosine down to a fiftieth."""
    adam_lr: float = 4e-3
    """The same for AdamW (embeddings and norms)."""
    warmup: int = 60
    """Steps of warm-up."""
    weight_decay: float = 0.05
    """Decay of the matrices in the blocks."""
    bf16: bool = True
    """Matrix products in bf16 (the weights stay fp32)."""
    checkpoint_s: float = 90.0
    """Seconds between checkpoints."""


@dataclass(frozen=True, slots=True)
class Row:
    """One training sequence."""

    ids: np.ndarray
    """Token ids, uint16, shape (T,)."""
    own: np.ndarray
    """True where the token belongs to the speaker's own replies (stop token included), (T,)."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What the progress bar shows."""

    step: int
    """Steps done."""
    loss: float
    """Mean loss of the last steps, in nats per own token."""
    tokens_per_s: float
    """Processed tokens per second, padding left out."""


def encode_row(lesson: Lesson, tokenizer: PreTrainedTokenizerFast) -> Row:
    """Tokens of a chat as the template renders it; the mask covers own replies only.

    The scripted opening is no own reply: it is given, and may hold any text.
    """
    start, end = tokenizer.convert_tokens_to_ids([START_OF_TURN, END_OF_TURN])
    ids: list[int] = []
    own: list[bool] = []
    for i, message in enumerate(lesson.messages):
        header = [start, *tokenizer.encode(f"{message.role}\n", add_special_tokens=False)]
        body = [*tokenizer.encode(message.content, add_special_tokens=False), end]
        ids += header + body
        mine = message.role == "assistant" and i >= lesson.first
        given = 0
        if mine and lesson.box_only:  # a box begins with a token of its own
            words = message.content.partition(" \\boxed{")[0]
            given = len(tokenizer.encode(words, add_special_tokens=False))
        own += [False] * (len(header) + given) + [mine] * (len(body) - given)
    return Row(np.array(ids, dtype=np.uint16), np.array(own))


def build_model(shape: Shape, tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A freshly initialised model."""
    torch.manual_seed(derive(seed, "nano", "weights"))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        # Slow rotations leave room for content that must match over hundreds of tokens.
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(END_OF_TURN),
        pad_token_id=tokenizer.convert_tokens_to_ids(PAD),
        initializer_range=0.04,
    )
    model = LlamaForCausalLM(config)
    if shape.layers > 1:
        start_copying(model, seed)
    return model


def train(
    model: LlamaForCausalLM,
    rows: Sequence[Row],
    plan: TrainingPlan,
    scratch: Path,
    report: Callable[[Progress], None],
) -> None:
    """Fit the model in place; continues from the checkpoint in ``scratch`` if there is one."""
    optimizers = _optimizers(model, plan)
    batches = _batches(rows, plan)
    job = _identity(model, rows, plan)
    first = _restore(model, optimizers, job, scratch)
    model.train()
    model.set_attn_implementation("eager")  # for short rows on a CPU twice as fast as the default
    began = saved = time.monotonic()
    tokens, recent = 0, 0.0
    for step in range(first, plan.steps):
        batch = [rows[i] for i in batches[step]]
        for optimizer, peak in zip(optimizers, (plan.lr, plan.adam_lr), strict=True):
            optimizer.param_groups[0]["lr"] = peak * _schedule(step, plan)
        loss = _loss(model, batch, bf16=plan.bf16)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        tokens += sum(len(r.ids) for r in batch)
        recent = loss.item() if step == first else 0.95 * recent + 0.05 * loss.item()
        report(Progress(step + 1, recent, tokens / (time.monotonic() - began)))
        if time.monotonic() - saved > plan.checkpoint_s:
            _checkpoint(model, optimizers, job, scratch, step + 1)
            saved = time.monotonic()
    model.set_attn_implementation("sdpa")
    model.eval()


def _optimizers(model: LlamaForCausalLM, plan: TrainingPlan) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks (it needs far fewer steps), AdamW for the rest."""
    blocks = [p for p in model.model.layers.parameters() if p.ndim == 2]
    inside = {id(p) for p in blocks}
    rest = [p for p in model.parameters() if id(p) not in inside]
    return [
        torch.optim.Muon(
            blocks,
            lr=plan.lr,
            weight_decay=plan.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(rest, lr=plan.adam_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def _loss(model: LlamaForCausalLM, batch: Sequence[Row], *, bf16: bool) -> torch.Tensor:
    width = max(len(r.ids) for r in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)  # (B, T)
    own = torch.zeros(len(batch), width, dtype=torch.bool)  # (B, T)
    for i, row in enumerate(batch):
        ids[i, : len(row.ids)] = torch.from_numpy(row.ids.astype(np.int64))
        own[i, : len(row.ids)] = torch.from_numpy(row.own)
    # Right padding needs no attention mask: a causal model never looks ahead.
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state  # (B, T, D)
        logits = model.lm_head(hidden[:, :-1][own[:, 1:]])  # (N, V)
    return torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:][own[:, 1:]])


def _batches(rows: Sequence[Row], plan: TrainingPlan) -> list[list[int]]:
    """Row numbers of every step: shuffled, then sorted by length within a window (less padding)."""
    rng = random.Random(derive(plan.seed, "nano", "order"))
    window = 32 * plan.batch_rows
    out: list[list[int]] = []
    while len(out) < plan.steps:
        order = list(range(len(rows)))
        rng.shuffle(order)
        epoch = []
        for a in range(0, len(order), window):
            near = sorted(order[a : a + window], key=lambda i: len(rows[i].ids))
            epoch += [near[b : b + plan.batch_rows] for b in range(0, len(near), plan.batch_rows)]
        rng.shuffle(epoch)
        out += epoch
    return out[: plan.steps]


def _schedule(step: int, plan: TrainingPlan) -> float:
    if step < plan.warmup:
        return (step + 1) / plan.warmup
    done = (step - plan.warmup) / max(plan.steps - plan.warmup, 1)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done))


def _identity(model: LlamaForCausalLM, rows: Sequence[Row], plan: TrainingPlan) -> str:
    """What a checkpoint belongs to: the plan, the architecture and every training token."""
    digest = hashlib.sha256(json.dumps(asdict(plan)).encode())
    digest.update(model.config.to_json_string().encode())
    for row in rows:
        digest.update(row.ids.tobytes())
    return digest.hexdigest()


def _checkpoint(
    model: LlamaForCausalLM,
    optimizers: Sequence[torch.optim.Optimizer],
    job: str,
    scratch: Path,
    step: int,
) -> None:
    tensors = {f"model.{i}": p.detach() for i, p in enumerate(model.parameters())}
    for number, optimizer in enumerate(optimizers):
        for index, state in optimizer.state_dict()["state"].items():
            for name, value in state.items():
                tensors[f"state.{number}.{index}.{name}"] = torch.as_tensor(value)
    scratch.mkdir(parents=True, exist_ok=True)
    part = scratch / "checkpoint.part"
    facts = {"step": str(step), "job": job}
    save_file({k: v.contiguous() for k, v in tensors.items()}, part, metadata=facts)
    part.replace(scratch / "checkpoint.safetensors")


def _restore(
    model: LlamaForCausalLM,
    optimizers: Sequence[torch.optim.Optimizer],
    job: str,
    scratch: Path,
) -> int:
    """Load the checkpoint of the same job; the number of steps done, 0 without one."""
    path = scratch / "checkpoint.safetensors"
    if not path.is_file():
        return 0
    with safe_open(path, "pt") as stream:
        facts = stream.metadata()
    if facts["job"] != job:
        return 0
    tensors = load_file(path)
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.copy_(tensors[f"model.{i}"])
    for number, optimizer in enumerate(optimizers):
        layout = optimizer.state_dict()
        for name, value in tensors.items():
            kind, *place = name.split(".")
            if kind == "state" and int(place[0]) == number:
                layout["state"].setdefault(int(place[1]), {})[place[2]] = value
        optimizer.load_state_dict(layout)
    return int(facts["step"])
