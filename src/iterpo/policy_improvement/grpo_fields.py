"""Which ``GRPOConfig`` fields a plan may set: all but those that an option of ours decides."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

from iterpo.domain import derive
from iterpo.errors import ConfigError, MissingExtraError
from iterpo.policy_improvement.base import OTHER_ENGINES, ImproveConfig
from iterpo.policy_improvement.ppo_options import PpoOptions

__all__ = ["field_mistakes", "grpo_settings"]

_BATCH = "prompts_per_step, group_size and micro_batch"
_OURS = {
    "auto_find_batch_size": _BATCH,
    "beta": "beta",
    "bf16": "the model's dtype",
    "data_seed": "seed",
    "dataloader_pin_memory": "nothing (batches are row numbers)",
    "disable_dropout": "nothing (dropout is always off)",
    "disable_tqdm": "the progress callback",
    "entropy_coef": "entropy_bonus",
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
_OBJECTIVE = (
    "delta",
    "epsilon",
    "epsilon_high",
    "importance_sampling_level",
    "loss_type",
    "num_iterations",
    "off_policy_mask_threshold",
    "sapo_temperature_neg",
    "sapo_temperature_pos",
    "scale_rewards",
    "top_entropy_quantile",
    "use_bias_correction_kl",
    "vespo_k_neg",
    "vespo_k_pos",
    "vespo_lambda_neg",
    "vespo_lambda_pos",
)
"""What varies GRPO's own objective; another operator has one of its own."""
_PPO = tuple(f"ppo.{f.name}" for f in fields(PpoOptions))
_ENGINE_ONLY = ("cache_implementation", "generation_kwargs", "min_p")


def field_mistakes(config: ImproveConfig, known: Mapping[str, Any]) -> list[str]:
    """Every mistake in further ``GRPOConfig`` fields.

    Args:
        config: Its ``grpo`` has the fields of the plan.
        known: Fields of ``GRPOConfig`` with their defaults.
    """
    found, given = [], config.grpo
    for name, value in given.items():
        if name in _OURS:
            found.append(f"grpo.{name} is decided by {_OURS[name]}; remove it from grpo")
        elif name in _OBJECTIVE and config.operator != "grpo":
            instead = f" ({', '.join(_PPO)} vary that of ppo)" if config.operator == "ppo" else ""
            found.append(
                f"grpo.{name} varies GRPO's own objective, and the operator is "
                f"{config.operator!r}{instead}; remove it from grpo"
            )
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


def grpo_settings(
    config: ImproveConfig, steps: int, per_step: int, known: AbstractSet[str]
) -> dict[str, Any]:
    """``GRPOConfig`` fields for batches of ``per_step`` prompts, but for folder and device.

    Raises:
        ConfigError: if the loss would depend on ``micro_batch``.
        MissingExtraError: if the tracker is not installed.
    """
    if config.report_to != "none" and find_spec(config.report_to) is None:
        raise MissingExtraError(
            f"improve.report_to is {config.report_to!r}, which is not installed: "
            f"pip install {config.report_to}"
        )
    sequences = per_step * config.group_size
    # The largest equal split, since TRL wants equal micro-batches.
    micro = max(m for m in range(1, config.micro_batch + 1) if sequences % m == 0)
    inner = config.updates_per_batch
    every = -(-config.checkpoint_every // inner) * inner  # samples of a batch are not stored
    if config.grpo.get("loss_type") == "bnpo" and micro < sequences:
        raise ConfigError(
            f"grpo.loss_type 'bnpo' divides by the tokens of a micro-batch ({micro} of {sequences} "
            "sequences), so its result would depend on micro_batch. Use 'dapo', the same over the "
            f"whole step, or micro_batch >= {sequences}."
        )
    return {
        **_no_activation_checkpointing(config.grpo, known),
        **config.grpo,
        **_of_the_operator(config),
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": sequences // micro,
        # A lone candidate is for PPO alone, and the trainer is told behind the check of these.
        "num_generations": config.group_size if config.group_size > 1 else sequences,
        "max_steps": steps,
        "learning_rate": config.learning_rate,
        # The reference is ours, so the trainer must not set up one; see _trl.
        "beta": 0.0,
        "temperature": config.sampling.temperature,
        "top_p": config.sampling.top_p,
        "top_k": config.sampling.top_k,
        "repetition_penalty": config.sampling.repetition_penalty,
        "max_completion_length": config.sampling.max_new_tokens,
        "shuffle_dataset": False,
        "disable_dropout": True,
        "dataloader_pin_memory": False,  # batches are row numbers
        "seed": derive(config.seed, "improve", "trainer") % 2**31,
        "report_to": config.report_to,
        "disable_tqdm": True,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "save_strategy": "steps" if every else "no",
        "save_steps": every or 500,
    }


def _of_the_operator(config: ImproveConfig) -> dict[str, Any]:
    """Fields that another operator than GRPO decides: a mean over all tokens of a step."""
    if config.operator == "grpo":
        return {}
    found: dict[str, Any] = {"loss_type": "dapo"}
    if config.operator == "ppo":
        found |= {"num_iterations": config.ppo.updates, "epsilon": config.ppo.clip}
    return found


def _no_activation_checkpointing(
    given: Mapping[str, Any], known: AbstractSet[str]
) -> dict[str, Any]:
    """TRL switches it on by default; it costs a third of the time, so it is for who asks."""
    names = ("activation_checkpointing", "gradient_checkpointing")  # new name, old name
    if any(name in given for name in names):
        return {"gradient_checkpointing": None} if names[0] in given else {}
    return {names[0]: False, names[1]: None} if names[0] in known else {names[1]: False}
