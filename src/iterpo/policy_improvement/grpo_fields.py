"""Which ``GRPOConfig`` fields a plan may set: all but those that an option of ours decides."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

__all__ = ["OTHER_ENGINES", "field_mistakes"]

_BATCH = "prompts_per_step, group_size and micro_batch"
_OURS = {
    "auto_find_batch_size": _BATCH,
    "beta": "beta",
    "bf16": "the model's dtype",
    "data_seed": "seed",
    "disable_dropout": "nothing (dropout is always off)",
    "disable_tqdm": "the progress callback",
    "fp16": "the model's dtype",
    "generation_batch_size": _BATCH,
    "gradient_accumulation_steps": _BATCH,
    "learning_rate": "learning_rate",
    "logging_steps": "nothing (every step is recorded)",
    "logging_strategy": "nothing (every step is recorded)",
    "max_completion_length": "sampling.max_new_tokens",
    "max_steps": "steps",
    "multi_objective_aggregation": "nothing (there is one reward)",
    "num_generations": "group_size",
    "num_train_epochs": "epochs",
    "output_dir": "workdir",
    "per_device_train_batch_size": _BATCH,
    "remove_unused_columns": "nothing (the data are states)",
    "repetition_penalty": "sampling.repetition_penalty",
    "report_to": "report_to",
    "resume_from_checkpoint": "nothing (a restart resumes by itself)",
    "reward_weights": "nothing (there is one reward)",
    "save_only_model": "checkpoint_every",
    "save_steps": "checkpoint_every",
    "save_strategy": "checkpoint_every",
    "save_total_limit": "checkpoint_every",
    "seed": "seed",
    "shuffle_dataset": "seed (the order of states is shuffled by it)",
    "steps_per_generation": _BATCH,
    "sync_ref_model": "nothing (the reference is the policy that collected the batch)",
    "temperature": "sampling.temperature",
    "top_k": "sampling.top_k",
    "top_p": "sampling.top_p",
    "use_cpu": "the model's device",
}
OTHER_ENGINES = ("use_vllm", "use_transformers_continuous_batching")
_ENGINE_ONLY = ("cache_implementation", "generation_kwargs", "min_p")


def field_mistakes(given: Mapping[str, Any], known: Mapping[str, Any]) -> list[str]:
    """Every mistake in further ``GRPOConfig`` fields.

    Args:
        given: Fields of the plan.
        known: Fields of ``GRPOConfig`` with their defaults.
    """
    found = []
    for name, value in given.items():
        if name in _OURS:
            found.append(f"grpo.{name} is decided by {_OURS[name]}; remove it from grpo")
        elif name not in known:
            close = difflib.get_close_matches(name, [k for k in known if k not in _OURS], n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            found.append(f"grpo.{name} is no field of trl.GRPOConfig{hint}")
        elif (
            name in _ENGINE_ONLY
            and value != known[name]
            and not any(given.get(engine) for engine in OTHER_ENGINES)
        ):
            found.append(f"grpo.{name} only acts with one of {', '.join(OTHER_ENGINES)}; remove it")
    return found
