"""run: PPO on a prepared batch by transformers' ``Trainer``, which steps, saves and resumes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import SequentialSampler
from transformers import (
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from iterpo.errors import ConfigError, TrainingError
from iterpo.models.backbone import Backbone
from iterpo.policy_improvement.base import ImproveResult, Training
from iterpo.policy_improvement.lending import known_warnings_off, lent
from iterpo.policy_improvement.logged import Schedule
from iterpo.policy_improvement.ppo_batch import PpoBatch, at_positions, positions
from iterpo.policy_improvement.ppo_config import PpoConfig
from iterpo.policy_improvement.ppo_losses import (
    approximate_kl,
    clipped,
    clipped_surrogate,
    clipped_value_loss,
    explained_variance,
)
from iterpo.policy_improvement.readings import read
from iterpo.policy_improvement.resume import checkpoint_facts, newest_checkpoint, seal_checkpoint
from iterpo.policy_improvement.value_head import ValueHead

__all__ = ["PpoJob", "run"]

_TOLERANCE = 1.5  # of the KL target, as in TRL and other PPO code


@dataclass(frozen=True, slots=True, eq=False)
class PpoJob:
    """All that one update by PPO needs."""

    backbone: Backbone
    """The policy that collected the batch; its model is the base of ``model``."""
    model: Any
    """``PeftModel`` with one active adapter, equal to that policy at first."""
    head: ValueHead
    """V of that policy."""
    batch: PpoBatch
    """What to learn from."""
    config: PpoConfig
    """How."""
    schedule: Schedule
    """Which episodes each step sees."""
    seed: int
    """The trainer's."""
    training: Training
    """Where to work, and who wants to know."""
    inputs_sha256: str
    """Identity of all inputs; a checkpoint of others is refused."""

    @property
    def workdir(self) -> Path:
        """Folder of checkpoints."""
        return self.training.workdir


@dataclass(slots=True)
class _Step:
    """What adds up over the forward passes of one optimizer step."""

    tokens: int = 0
    """Tokens of the agent, all passes together."""
    positions: int = 0
    """Positions, all passes together."""
    means: Counter[str] = field(default_factory=Counter)
    """Sums that are already divided by one of these."""
    values: list[Tensor] = field(default_factory=list)
    """V of each pass."""
    returns: list[Tensor] = field(default_factory=list)
    """What it should have been."""


def run(job: PpoJob, counts: Mapping[str, int]) -> ImproveResult:
    """Train to the planned number of steps, going on from a checkpoint if there is one.

    Args:
        job: What to do.
        counts: What is to be told beside the trainer's own counts.

    Raises:
        ResumeError: if the newest checkpoint belongs to other inputs.
        TrainingError: if fewer steps were done than planned.
    """
    start = time.perf_counter()
    adapter = str(job.model.active_adapter)
    checkpoint = newest_checkpoint(job)
    with lent(job.model), _carrying(job.model, job.head), known_warnings_off():
        trainer = _Trainer(job, _arguments(job))
        if checkpoint is not None:
            trainer.restore(checkpoint)
        if not trainer.stopped:
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        done = trainer.counts["optimizer_steps"]
    if done != job.schedule.steps and not trainer.stopped:
        raise TrainingError(
            f"{done} of {job.schedule.steps} planned steps were done; the adapter is not the one "
            f"asked for. Delete {job.workdir} and run again."
        )
    known = job.batch.episodes
    return ImproveResult(
        model=job.model,
        adapter_name=adapter,
        steps=done,
        counts={
            **counts,
            **trainer.counts,
            "conversations": len(known),
            "actions": sum(len(e.actions) for e in known),
            "kl_stopped": int(trainer.stopped),
        },
        seconds={"total": time.perf_counter() - start},
    )


@contextmanager
def _carrying(model: Any, head: ValueHead) -> Iterator[None]:
    """Let a policy carry a value head, so that one optimizer steps both; no trace is left."""
    model.add_module("value_head", head)
    try:
        yield
    finally:
        del model.value_head


def _arguments(job: PpoJob) -> TrainingArguments:
    config, dtype, every = job.config, job.backbone.dtype, job.training.checkpoint_every
    args = TrainingArguments(
        output_dir=str(job.workdir),
        per_device_train_batch_size=job.schedule.batch_size,
        gradient_accumulation_steps=job.schedule.accumulation,
        max_steps=job.schedule.steps,
        learning_rate=config.learning_rate,
        max_grad_norm=config.max_grad_norm,
        seed=job.seed,
        bf16=dtype == torch.bfloat16,
        fp16=dtype == torch.float16,
        use_cpu=job.backbone.device.type == "cpu",
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps" if every else "no",
        save_steps=every or 500,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,  # batches are row numbers
    )
    if args.world_size > 1:
        raise ConfigError(
            f"mt_ppo runs in one process, but {args.world_size} were launched; start one process."
        )
    args._n_gpu = min(args.n_gpu, 1)  # else the trainer would deal a pass out to all that it sees
    return args


class _Trainer(Trainer):  # type: ignore[misc]
    """Feeds episodes in their planned order, and computes PPO's loss on them."""

    loss_is_scaled_for_ga = True  # by what all passes of a step hold together

    def __init__(self, job: PpoJob, args: TrainingArguments) -> None:
        self.job = job
        self.stopped = False
        self.counts: Counter[str] = Counter()
        self.now = _Step()
        super().__init__(
            model=job.model,
            args=args,
            train_dataset=list(job.schedule.visits),
            data_collator=lambda rows: {"rows": rows},
            processing_class=job.backbone.tokenizer,
            callbacks=[_Callback(self)],
        )
        for noisy in (PrinterCallback, ProgressCallback):
            self.remove_callback(noisy)

    def restore(self, checkpoint: Path) -> None:
        """Take over what was stored with a checkpoint; the trainer itself takes the rest."""
        facts = checkpoint_facts(checkpoint)
        self.counts.update(facts["counts"])
        self.stopped = facts["stopped"]
        self.job.head.load_state_dict(ValueHead.load(checkpoint).state_dict())
        if self.stopped:  # nothing is trained that would load the adapter
            self._load_from_checkpoint(str(checkpoint))

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted."""
        del inputs
        return 0

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        """The passes of a step, and what it is normalised by."""
        passes, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        seen = [self.job.batch.episodes[i] for one in passes for i in one["rows"]]
        unit = self.job.config.unit
        self.now = _Step(sum(e.tokens for e in seen), sum(positions(e, unit) for e in seen))
        return passes, self.now.tokens

    def compute_loss(
        self,
        model: Any,
        inputs: Mapping[str, Sequence[int]],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor:
        """Clipped surrogate by token and value loss by position, as shares of the step's means."""
        del return_outputs, num_items_in_batch
        model.eval()  # dropout would make the ratio of an unchanged policy differ from 1
        config, device = self.job.config, self.job.backbone.device
        some = [self.job.batch.episodes[i] for i in inputs["rows"]]
        old = [self.job.batch.old[i] for i in inputs["rows"]]
        found = read(self.job.model, some, self.accelerator.autocast)
        values = self.job.head(at_positions(found.states, some, config.unit))

        def before(name: str) -> Tensor:
            return torch.cat([getattr(o, name) for o in old]).to(device)

        advantages = before("advantages")
        if config.unit == "turn":
            lengths = torch.tensor([a.length for e in some for a in e.actions], device=device)
            advantages = advantages.repeat_interleave(lengths)
        told = (found.logps, before("logps"))
        surrogate = clipped_surrogate(*told, advantages, config.clip)
        errors = clipped_value_loss(values, before("values"), before("returns"), config.value_clip)
        policy = surrogate.sum() / self.now.tokens
        value = errors.sum() / self.now.positions
        self._note(
            policy_loss=policy,
            value_loss=value,
            approx_kl=approximate_kl(*told).sum() / self.now.tokens,
            clip_fraction=clipped(*told, advantages, config.clip).sum() / self.now.tokens,
            entropy=found.entropies.sum() / self.now.tokens,
        )
        self.now.values.append(values.detach())
        self.now.returns.append(before("returns"))
        self.counts["read_tokens"] += sum(e.read for e in some)
        return policy + config.value_coefficient * value

    def _note(self, **parts: Tensor) -> None:
        for name, part in parts.items():
            self.now.means[name] += float(part.detach())  # type: ignore[assignment]

    def too_far(self) -> bool:
        """Whether the policy, before this step's update, left what the target allows."""
        target = self.job.config.target_kl
        return target is not None and self.now.means["approx_kl"] > _TOLERANCE * target

    def metrics(self) -> dict[str, float]:
        """Of the latest step."""
        explained = explained_variance(torch.cat(self.now.returns), torch.cat(self.now.values))
        found = {name: float(value) for name, value in self.now.means.items()}
        return found if explained != explained else {**found, "explained_variance": explained}

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return SequentialSampler(train_dataset or self.train_dataset)  # the plan is shuffled

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        self.job.head.save(folder)
        facts = {"counts": dict(self.counts), "stopped": self.stopped}
        seal_checkpoint(folder, self.job, facts)


class _Callback(TrainerCallback):  # type: ignore[misc]
    """Ends a phase that went too far, before its next update, and hands on each step's metrics."""

    def __init__(self, trainer: _Trainer) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by the trainer when the gradient is there."""
        del args, state
        trainer = self.trainer
        if trainer.too_far():
            trainer.stopped = control.should_training_stop = True
            trainer.job.model.zero_grad(set_to_none=True)  # without a gradient nothing is stepped
        else:
            trainer.counts["optimizer_steps"] += 1
            trainer.counts["trained_tokens"] += trainer.now.tokens

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Called by the trainer after every step, before a checkpoint is written."""
        del args, control
        if not logs or "loss" not in logs:
            return
        found = {k: float(logs[k]) for k in ("loss", "grad_norm", "learning_rate") if k in logs}
        metrics = {**self.trainer.metrics(), **found}
        if self.trainer.stopped:
            metrics["update_skipped"] = 1.0
        step, training = int(state.global_step), self.trainer.job.training
        if training.record is not None:
            training.record(step, metrics)
        if training.progress is not None:
            training.progress(step, self.trainer.job.schedule.steps, metrics)
