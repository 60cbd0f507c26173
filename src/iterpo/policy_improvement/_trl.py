"""TRL's ``GRPOTrainer``, driven so that the ids, rewards and reference are exactly ours.

What the subclass changes, and why:

* advantages are those of the operator's ``Objective``: GRPO's own, RLOO's, or PPO's by token;
* candidates come from ``models.generation`` with derived seeds, so the sampled ids reach the loss
  unchanged (no decoding and re-tokenising) and a restart draws the same ones;
* a missing reward leaves its candidate out of the group *and* out of the loss and its denominator;
* a group without spread gets no advantage and, with a KL term, no pull of that term either;
* the reference of the KL term is a frozen copy of the policy that collected the batch;
* an ``Observer`` measures every batch, weighs the KL term and ends a phase that went too far.

With one update per batch (``num_iterations`` 1) the probability ratio is 1 by construction, so
nucleus sampling can't bias it; ``ImproveConfig.mistakes`` refuses the combinations where it would.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, ProgressCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from iterpo.errors import ConfigError, TrainingError
from iterpo.models.backbone import frozen, logprob_tolerance
from iterpo.models.kept_states import KeptStates, keeping
from iterpo.policy_improvement.alarms import Alarms
from iterpo.policy_improvement.base import OTHER_ENGINES, ImproveConfig, ImproveResult
from iterpo.policy_improvement.candidates import (
    Batch,
    candidate_temperatures,
    draw_candidates,
    planned_states,
)
from iterpo.policy_improvement.grpo_fields import field_mistakes, grpo_settings
from iterpo.policy_improvement.job import Job, Tally
from iterpo.policy_improvement.lending import known_warnings_off, lent
from iterpo.policy_improvement.objectives import Scored
from iterpo.policy_improvement.observer import Observer, Passes
from iterpo.policy_improvement.penalties import entropy_term, kl_term
from iterpo.policy_improvement.reporting import Reporter, batch_metrics
from iterpo.policy_improvement.resume import checkpoint_facts, newest_checkpoint, seal_checkpoint
from iterpo.policy_improvement.shared_prompt import agree, can_share, response_logps, shared_logps

__all__ = ["check_fields", "train"]

_PER_SEQUENCE_LOSSES = ("dr_grpo", "grpo", "luspo", "sapo")


def check_fields(config: ImproveConfig) -> None:
    """Refuse further ``GRPOConfig`` fields that can't be used, before any work is done.

    Raises:
        ConfigError: with every unknown field, every field that an option of ours decides, and
            what ``GRPOConfig`` itself refuses.
    """
    known = {
        f.name: f.default if f.default is not MISSING else None
        for f in fields(GRPOConfig)
        if f.init
    }
    mistakes = field_mistakes(config, known)
    if mistakes:
        raise ConfigError("improve can't pass these on to the trainer:\n  " + "\n  ".join(mistakes))
    _arguments(config, Path("unused"), 1, config.prompts_per_step, ("cpu", torch.float32))


def train(job: Job) -> ImproveResult:
    """Run the trainer to the planned number of steps, going on from a checkpoint if there is one.

    Raises:
        ConfigError: if ``GRPOConfig`` refuses the settings.
        ResumeError: if the newest checkpoint belongs to other inputs.
        TrainingError: if fewer steps were done than planned.
    """
    start = time.perf_counter()
    adapter = str(job.model.active_adapter)
    place = (str(job.backbone.device), job.backbone.dtype)
    args = _arguments(job.config, job.workdir, job.steps, len(job.order[0]), place)
    checkpoint = newest_checkpoint(job)
    with lent(job.model), known_warnings_off():
        trainer = _Trainer(job, args)
        if checkpoint is not None:
            trainer.restore(checkpoint)
        guard = trainer.observer.guard
        if not guard.stopped:
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        done = int(trainer.state.global_step)
        if done != job.steps and not guard.stopped:
            raise TrainingError(
                f"{done} of {job.steps} planned steps were done; the adapter is not the one asked "
                f"for. Delete {job.workdir} and run again."
            )
        drift = trainer.observer.finish(trainer.passes)
    counts = Counter(states=len(job.prompts.states), shortened_prompts=job.prompts.shortened)
    counts.update(trainer.tally.counts)
    counts["kl_stopped"] = int(guard.stopped)
    counts.update({f"drift_{kind}": steps for kind, steps in trainer.observer.watch.told.items()})
    return ImproveResult(
        model=job.model,
        adapter_name=adapter,
        steps=guard.kept_step if guard.stopped else done,
        counts=counts,
        seconds={**trainer.tally.seconds, "total": time.perf_counter() - start},
        drift=drift,
    )


def _arguments(
    config: ImproveConfig, workdir: Path, steps: int, per_step: int, place: tuple[str, Any]
) -> Any:
    """``GRPOConfig`` for batches of ``per_step`` prompts; ``place`` is (device, dtype)."""
    settings = {
        **grpo_settings(config, steps, per_step, frozenset(f.name for f in fields(GRPOConfig))),
        "output_dir": str(workdir),
        "bf16": place[1] == torch.bfloat16,
        "fp16": place[1] == torch.float16,
        "use_cpu": torch.device(place[0]).type == "cpu",
    }
    try:
        args = GRPOConfig(**settings)
    except (ValueError, TypeError, NotImplementedError, ImportError) as error:
        raise ConfigError(f"trl.GRPOConfig refuses the settings under grpo: {error}") from error
    args.num_generations = config.group_size  # GRPOConfig refuses 1, which PPO can use
    if args.world_size > 1:
        raise ConfigError(
            f"improve runs in one process, but {args.world_size} were launched; start one process."
        )
    return args


class _Trainer(GRPOTrainer):  # type: ignore[misc]
    """GRPO with our candidates, our rewards, our masks and the operator's advantages."""

    def __init__(self, job: Job, args: Any) -> None:
        self.job = job
        self.tally = Tally()
        config = job.config
        self.alarms = Alarms(config.clipped_ratio_alarm, config.flat_steps_alarm)
        self.observer = Observer.of(job, self.tally)
        own_engine = not any(config.grpo.get(name) for name in OTHER_ENGINES)
        rows = [str(i) for batch in job.order for i in batch]
        super().__init__(
            model=job.model,
            reward_funcs=_scored_by_the_job,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": rows}),
            processing_class=job.backbone.tokenizer,
            callbacks=[Reporter(self.tally, job, self.observer)],
            rollout_func=_rollout if own_engine else None,
        )
        self.mask_truncated_completions = False  # done here, by the stop tokens alone
        self.eos_token_ids = list(job.backbone.chat.stop_ids)
        self.create_model_card = lambda **_: None  # checkpoints are internal
        for noisy in (PrinterCallback, ProgressCallback):
            self.remove_callback(noisy)
        self._batch: Batch
        self._rewards = torch.empty(0)
        self._pass: Any = None
        self._sharing_is_exact: bool | None = None
        self._kept: KeptStates

    @property
    def batch_index(self) -> int:
        """Index of the sampled batch that the current step belongs to."""
        return int(self.state.global_step) // int(self.num_iterations)

    @property
    def passes(self) -> Passes:
        """How to run forward passes of the policy."""
        return Passes(self.model, partial(self._shares, self.model), self.accelerator.autocast)

    def restore(self, checkpoint: Path) -> None:
        """Take over what was stored with a checkpoint."""
        facts = checkpoint_facts(checkpoint)
        self.tally.counts.update(facts["counts"])
        self.alarms.streaks.update(facts["streaks"])
        self.observer.restore(checkpoint, facts)
        self.job.objective.restore(checkpoint)

    def _tokenize_prompts(self, prompts: list[str]) -> Any:
        # Reached with TRL's own engines only: they too get the exact ids of the log.
        return [list(self.job.prompts.ids[int(row)]) for row in prompts], None, {}

    def _calculate_rewards(
        self, inputs: Any, prompts: list[str], completions: Any, completion_ids_list: Any
    ) -> torch.Tensor:
        del inputs, completions
        job, indices = self.job, planned_states(self.job, prompts, self.batch_index)
        temperatures = candidate_temperatures(job, self.batch_index)
        self._batch = Batch.of(job, indices, completion_ids_list, temperatures)
        needed = bool(job.config.beta or job.config.kl_target)
        with self.tally.timed("reward"), keeping(job.backbone, needed) as self._kept:
            self._rewards = self._batch.score(job)
        return self._rewards.float().unsqueeze(1).to(self.accelerator.device)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        # As the trainer's own, but unshuffled: micro-batches keep the candidates of a prompt
        # together, and they all belong to one optimizer step anyway.
        split = self.args.steps_per_generation
        if self._step % (split * self.num_iterations) == 0 or self._buffered_inputs is None:
            scored = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs: Any = split_tensor_dict(scored, split)
        return self._buffered_inputs[self._step % split]

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **options: Any,
    ) -> Any:
        n = logits_to_keep
        way = super()._get_per_token_logps_and_entropies
        if not options.get("compute_aux_loss") and self._shares(
            model, input_ids, attention_mask, n
        ):
            way = self._shared_logps
        out = way(model, input_ids, attention_mask, n, batch_size, **options)
        self._pass = out if options.get("compute_entropy") else None
        return out

    def _shares(self, model: Any, ids: torch.Tensor, mask: torch.Tensor, n: int) -> bool:
        """Whether candidates of a prompt may share its forward pass; tried out the first time."""
        if not can_share(model, ids[:, :-n]):
            return False
        if self._sharing_is_exact is None:
            few = slice(0, 2 * self.num_generations)
            with torch.no_grad():
                plain = super()._get_per_token_logps_and_entropies
                size = self.args.per_device_train_batch_size
                slow, _, _ = plain(model, ids[few], mask[few], n, size)
                fast, _, _ = self._shared_logps(model, ids[few], mask[few], n, size)
            most = logprob_tolerance(self.job.backbone.dtype)
            self._sharing_is_exact = agree(slow, fast, mask[few, -n:], most)
        return self._sharing_is_exact

    def _shared_logps(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        n: int,
        batch_size: int | None = None,
        **options: Any,
    ) -> Any:
        size = batch_size or len(input_ids)
        logps, entropies = shared_logps(
            model, input_ids, attention_mask, n, size, self.accelerator.autocast
        )
        return logps, entropies if options.get("compute_entropy") else None, None

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        config, args, objective = self.job.config, self.args, self.job.objective
        self.beta = 0.0  # keeps the trainer from looking for a reference of its own
        out: dict[str, Any] = super()._generate_and_score_completions(inputs)
        batch, observer = self._batch, self.observer
        drift = observer.observe(batch, int(self.state.global_step), self.passes, self._kept)
        if observer.kl_weight > 0:
            out["ref_per_token_logps"] = self._reference_logps(out)
        self._kept.found.clear()  # not to be held through the passes of training
        mask = out["completion_mask"]  # (N, T)
        ids = out["completion_ids"]  # (N, T)
        lengths = mask.sum(1)
        stops = torch.tensor(self.eos_token_ids, device=ids.device)
        last = ids.gather(1, (lengths - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        clipped = ~torch.isin(last, stops)
        rewards, own = self._rewards.to(ids.device), batch.own.to(ids.device)
        usable = rewards
        if args.mask_truncated_completions:  # out of the group and of the loss alike
            usable = rewards.masked_fill(clipped, float("nan"))
        states = partial(observer.candidate_states, batch, self.passes)
        advantages = objective.advantages(Scored(usable, mask, own, states))
        used = advantages.scored
        in_loss = used
        if observer.kl_weight > 0:
            in_loss = used & ~advantages.tied.repeat_interleave(config.group_size)
        out["advantages"] = advantages.values.view(len(used), -1)  # (N, 1) or (N, T)
        if config.candidate_temperatures:
            out["on_policy"] = own
            out["advantages"] *= observer.candidate_weights(batch, self.passes).unsqueeze(1)
        if not bool(in_loss.all()):
            out["tool_mask"] = in_loss.unsqueeze(1).expand_as(mask).to(mask.dtype)
        own_tokens = mask * own.unsqueeze(1)
        out["own_tokens"] = own_tokens.sum()
        out["kl_tokens"] = (own_tokens * in_loss.unsqueeze(1)).sum()
        # Tied groups stay in the denominator, as in TRL; unscored candidates do not.
        out["num_items_in_batch"] = (mask * used.unsqueeze(1)).sum()
        if objective.whole_responses:
            out["loss_scale"] = out["num_items_in_batch"] / used.sum().clamp(min=1)
        out["used_share"] = used.double().mean().clamp(min=1 / len(used))
        facts = batch_metrics(rewards[own], lengths[own], clipped[own], advantages.tied)
        self._note({**facts, **drift, **advantages.facts})
        self.tally.counts.update(
            responses=len(rewards),
            unscored=int(rewards.isnan().sum()),
            clipped=int(clipped.sum()),
            groups=len(advantages.tied),
            tied_groups=int(advantages.tied.sum()),
        )
        return out

    def _note(self, metrics: dict[str, float]) -> None:
        raised = self.alarms.check(int(self.state.global_step) + 1, metrics)
        self.tally.latest = {**metrics, "alarms": float(len(raised))}
        self.tally.counts["alarms"] += len(raised)

    def _reference_logps(self, out: dict[str, Any]) -> torch.Tensor:
        """Log-probs (N, T) under the policy that collected the batch, adapter included."""
        ids, mask = (
            torch.cat([out[f"prompt_{kind}"], out[f"completion_{kind}"]], dim=1)
            for kind in ("ids", "mask")
        )
        n = out["completion_ids"].size(1)
        if not self._shares(self.model, ids, mask, n):
            self._kept.found.clear()  # they come from a shared pass too
        known, states = self._batch.kept(self.job, self._kept, n)
        known = known.to(ids.device)
        found = torch.zeros(len(ids), n, device=ids.device)
        with frozen(self.job.backbone):
            if states is not None:
                own = ids[known, -n:], mask[known, -n:]
                with self.accelerator.autocast():
                    found[known] = response_logps(self.model, states, *own)[0]
            if bool(known.all()):
                return found
            size = self.args.per_device_train_batch_size
            logps, _, _ = self._get_per_token_logps_and_entropies(
                self.model, ids[~known], mask[~known], n, batch_size=size
            )
        found[~known] = logps
        return found

    def _compute_loss(self, model: Any, inputs: Any) -> torch.Tensor:
        weight, bonus = self.observer.kl_weight, self.job.config.entropy_bonus
        tempered = "on_policy" in inputs
        # Hot candidates are no draws of the policy, so TRL's mean of the KL term is not for them.
        self.beta = 0.0 if tempered else weight
        loss: torch.Tensor = super()._compute_loss(model, inputs)
        (logps, entropies, _), self._pass = self._pass, None
        if self.loss_type in _PER_SEQUENCE_LOSSES:
            # These average over all sequences; unscored ones (zero so far) must not count.
            loss = loss / inputs["used_share"].to(loss.dtype)
        own = inputs["completion_mask"]
        if tempered:
            own = own * inputs["on_policy"].unsqueeze(1)
        entropy = entropy_term(entropies, own, inputs["own_tokens"])
        self.tally.entropy += float(entropy.detach())
        if bonus > 0:
            loss = loss - bonus * entropy
        if tempered and weight > 0:
            in_loss = own * inputs.get("tool_mask", 1)
            reference = inputs["ref_per_token_logps"]
            loss = loss + weight * kl_term(logps, reference, in_loss, inputs["kl_tokens"])
        return loss * inputs["loss_scale"] if "loss_scale" in inputs else loss

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        facts = {
            "counts": dict(self.tally.counts),
            "streaks": dict(self.alarms.streaks),
            **self.observer.store(folder),
        }
        self.job.objective.store(folder)
        seal_checkpoint(folder, self.job, facts)


def _scored_by_the_job(**_: Any) -> list[float]:
    raise TrainingError("the trainer asked for rewards in an unknown way; report this as a bug")


_scored_by_the_job.__name__ = "reward"


def _rollout(rows: list[str], trainer: _Trainer) -> dict[str, Any]:
    """Candidates for one batch: exact prompt ids in, exact sampled ids out."""
    job, batch = trainer.job, trainer.batch_index
    indices = planned_states(job, rows, batch)
    temperatures = candidate_temperatures(job, batch)
    with trainer.tally.timed("sampling"):
        drawn = draw_candidates(job, trainer.model, indices, batch, temperatures)
    return {
        "prompt_ids": [list(job.prompts.ids[i]) for i in indices],
        "completion_ids": [list(d.token_ids) for d in drawn],
        "logprobs": [list(d.logprobs) for d in drawn],
    }
