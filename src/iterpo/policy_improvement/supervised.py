"""Supervised: a run of a ``transformers`` trainer on logged examples, reported and resumable."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from iterpo.domain import derive
from iterpo.errors import ConfigError, TrainingError
from iterpo.models.backbone import attach_lora
from iterpo.policy_improvement.base import ImproveResult, Training
from iterpo.policy_improvement.lending import known_warnings_off, lent
from iterpo.policy_improvement.logged import LoggedConfig, Schedule
from iterpo.policy_improvement.resume import newest_checkpoint, seal_checkpoint

__all__ = ["Build", "Run", "fit"]

Build = Callable[[Any, Mapping[str, Any]], Any]
"""Makes a trainer of a ``PeftModel`` and the fields of its arguments that a run decides."""

_METRICS = {
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "kl": "z0",
    "learning_rate": "learning_rate",
    "logps/chosen": "logp_agreed",
    "logps/rejected": "logp_other",
    "loss": "loss",
    "mean_token_accuracy": "token_accuracy",
    "rewards/chosen": "reward_agreed",
    "rewards/margins": "reward_margin",
    "rewards/rejected": "reward_other",
}
"""Names of the trainers' metrics -> ours."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of a trainer is, apart from its loss."""

    training: Training
    """The policy and where to work."""
    config: LoggedConfig
    """How."""
    schedule: Schedule
    """Which examples each step sees."""
    inputs: Mapping[str, Any]
    """All else that the result depends on, as JSON values; a checkpoint of other inputs is
    refused."""
    counts: Mapping[str, int]
    """Facts for ``ImproveResult.counts``."""
    learned: Sequence[int]
    """Tokens in the loss of each example."""

    @property
    def workdir(self) -> Path:
        """Folder of checkpoints."""
        return self.training.workdir

    @property
    def learned_by_step(self) -> list[int]:
        """Tokens in the loss of each optimizer step."""
        return [sum(self.learned[i] for i in step) for step in self.schedule.order]

    @property
    def inputs_sha256(self) -> str:
        """Identity of all inputs."""
        facts = {
            "policy": self.training.backbone.policy.id,
            "lora": asdict(self.training.lora),
            "seed": self.training.seed,
            "step_factor": self.training.step_factor,
            "config": asdict(self.config),
            "inputs": self.inputs,
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def fit(run: Run, build: Build) -> ImproveResult:
    """Train a policy to the planned number of steps, going on from a checkpoint if there is one.

    Equal inputs give equal adapter bytes on a CPU, also across an interruption.

    Raises:
        ConfigError: if the adapter is to have dropout, or several processes were launched.
        ResumeError: if the newest checkpoint belongs to other inputs.
        TrainingError: if fewer steps were done than planned.
    """
    start = time.perf_counter()
    training = run.training
    if training.lora.dropout != 0:
        raise ConfigError(
            f"lora.dropout is {training.lora.dropout!r}; methods are compared at 0, where the "
            "log-probabilities of a response don't differ from call to call"
        )
    checkpoint = newest_checkpoint(run)
    seed = derive(training.seed, "improve", "lora")  # as GRPO's: methods start from one adapter
    model = attach_lora(training.backbone, training.lora, seed)
    adapter = str(model.active_adapter)
    with lent(model), known_warnings_off():
        trainer = build(model, _arguments(run))
        if trainer.args.world_size > 1:
            raise ConfigError(
                f"a policy is trained in one process, but {trainer.args.world_size} were launched; "
                "start one process."
            )
        trainer.create_model_card = lambda **_: None  # checkpoints are internal
        for noisy in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(noisy)
        trainer.add_callback(_Reporter(run))
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    done = int(trainer.state.global_step)
    if done != run.schedule.steps:
        raise TrainingError(
            f"{done} of {run.schedule.steps} planned steps were done; the adapter is not the one "
            f"asked for. Delete {run.workdir} and run again."
        )
    seconds = {"total": time.perf_counter() - start}
    counts = {**run.counts, "response_tokens": sum(run.learned_by_step), "optimizer_steps": done}
    return ImproveResult(model, adapter, done, counts, seconds)


def _arguments(run: Run) -> dict[str, Any]:
    """Fields of ``TrainingArguments``; the rows come in the order of the schedule."""
    training, schedule = run.training, run.schedule
    every, dtype = training.checkpoint_every, training.backbone.dtype
    return {
        "output_dir": str(training.workdir),
        "per_device_train_batch_size": schedule.batch_size,
        "gradient_accumulation_steps": schedule.accumulation,
        "train_sampling_strategy": "sequential",
        "max_steps": schedule.steps,
        "learning_rate": run.config.learning_rate * training.step_factor,
        "lr_scheduler_type": "linear",
        "seed": derive(training.seed, "improve", "trainer") % 2**31,
        "bf16": dtype == torch.bfloat16,
        "fp16": dtype == torch.float16,
        "use_cpu": training.backbone.device.type == "cpu",
        "gradient_checkpointing": False,  # on by default in TRL; it costs a third of the time
        "max_length": None,
        "remove_unused_columns": False,  # rows are numbers of examples
        "dataloader_pin_memory": False,
        "report_to": "none",
        "disable_tqdm": True,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "save_strategy": "steps" if every else "no",
        "save_steps": every or 500,
    }


class _Reporter(TrainerCallback):  # type: ignore[misc]
    """Hands on each step's metrics, and seals checkpoints."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.learned = run.learned_by_step

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Called by the trainer after every step, before a checkpoint is written."""
        del args, control
        if not logs or "loss" not in logs:
            return
        metrics = {ours: float(logs[name]) for name, ours in _METRICS.items() if name in logs}
        step, training = int(state.global_step), self.run.training
        metrics["response_tokens"] = float(self.learned[step - 1])
        if training.record is not None:
            training.record(step, metrics)
        if training.progress is not None:
            training.progress(step, self.run.schedule.steps, metrics)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by the trainer after a checkpoint was written."""
        del args, control
        folder = self.run.workdir / f"checkpoint-{state.global_step}"
        seal_checkpoint(folder, self.run, {})
