"""Watches a phase from inside: monitors of every batch, the guard on KL, weights of candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from iterpo.models.generation import evaluating
from iterpo.models.kept_states import KeptStates
from iterpo.policy_improvement.candidates import Batch, draw_candidates
from iterpo.policy_improvement.drift import (
    Moved,
    adapter_of,
    measure,
    put_back,
    read_adapter,
    write_adapter,
)
from iterpo.policy_improvement.job import Job, Tally
from iterpo.policy_improvement.kl_guard import KlGuard
from iterpo.policy_improvement.shared_prompt import token_logits, token_states, vocabulary
from iterpo.policy_improvement.tempering import log_mixture_weights, token_logps
from iterpo.policy_improvement.watch import Watch

__all__ = ["Observer", "Passes"]

_HELD = 2**24  # logits that are held at a time
_KEPT = "within-kl-stop.safetensors"


@dataclass(frozen=True, slots=True)
class Passes:
    """How a trainer runs forward passes of the policy."""

    model: Any
    """The policy in training, a ``PeftModel``."""
    shares: Callable[[torch.Tensor, torch.Tensor, int], bool]
    """Whether candidates (ids, mask, response length) may share their prompt's pass."""
    autocast: Callable[[], AbstractContextManager[Any]]
    """Context of a pass."""


@dataclass(slots=True)
class Observer:
    """What one phase knows of its own drift."""

    job: Job
    """The phase."""
    tally: Tally
    """Where times add up."""
    watch: Watch
    """Raises drift alarms."""
    guard: KlGuard
    """Weighs the KL term and ends the phase."""
    kl_weight: float
    """Weight of the KL term in the loss of the current batch."""
    kept: dict[str, torch.Tensor] = field(default_factory=dict)
    """The adapter that was last measured within ``kl_stop``; at first the one that begins."""

    @classmethod
    def of(cls, job: Job, tally: Tally) -> Observer:
        """For a phase that begins."""
        config = job.config
        guard = KlGuard(config.beta, config.kl_target, config.kl_stop)
        # A batch may measure nothing, so the first measurement may already be beyond the limit.
        kept = adapter_of(job.model) if config.kl_stop is not None else {}
        return cls(job, tally, Watch(config.drift), guard, config.beta, kept)

    def observe(
        self, batch: Batch, step: int, passes: Passes, known: KeptStates
    ) -> dict[str, float]:
        """Monitors of a batch that the policy after ``step`` steps drew; follows its KL.

        Args:
            batch: The candidates.
            step: Steps done.
            passes: How to run the policy.
            known: States of the frozen policy; those measured at are added.
        """
        config, found = self.job.config, batch.monitors(self.job)
        shown = self._measured_states(len(self.job.order[0])) * config.group_size
        if rows := [n for n in range(shown) if batch.own[n]]:
            with self.tally.timed("drift"):
                moved = self._moved(batch, rows, passes, known)
            found.update(kl_response=moved.per_response, kl=moved.per_token)
            self.kl_weight = self.guard.weight(moved.per_response)
            if self.guard.within(moved.per_response, step) and config.kl_stop is not None:
                self.kept = adapter_of(passes.model)
        if config.kl_target is not None:
            found["beta"] = self.kl_weight
        return found

    def candidate_states(self, batch: Batch, passes: Passes) -> torch.Tensor:
        """Hidden states (n, d) of the policy before each token of the candidates, row by row."""
        everyone = batch.padded(self.job, range(len(batch.indices)))
        n = everyone.length
        shared = passes.shares(everyone.ids, everyone.mask, n)
        with evaluating(passes.model), passes.autocast():
            return torch.cat(
                [
                    token_states(passes.model, part.ids, part.mask, n, shared=shared)
                    for part in everyone.chunks(self.job.config.micro_batch)
                ]
            )

    def candidate_weights(self, batch: Batch, passes: Passes) -> torch.Tensor:
        """Ratio (N,) of the policy to the mixture of temperatures that drew the candidates."""
        config, found = self.job.config, []
        everyone = batch.padded(self.job, range(len(batch.indices)))
        n, at_once = everyone.length, max(1, _HELD // vocabulary(passes.model))
        shared = passes.shares(everyone.ids, everyone.mask, n)
        own, given = config.sampling.temperature, config.candidate_temperatures
        for part in everyone.chunks(config.group_size):
            mask = part.mask[:, -n:]
            logps = mask.new_zeros(len(given), *mask.shape, dtype=torch.float32)
            with torch.no_grad(), passes.autocast():
                states = token_states(passes.model, part.ids, part.mask, n, shared=shared)
                said = torch.split(part.ids[:, -n:][mask.bool()], at_once)
                logps[:, mask.bool()] = torch.cat(
                    [
                        token_logps(token_logits(passes.model, some).float(), ids, given)
                        for some, ids in zip(torch.split(states, at_once), said, strict=True)
                    ],
                    dim=1,
                )
            found.append(log_mixture_weights(logps, mask, given, own))
        return torch.cat(found).exp().float()

    def finish(self, passes: Passes) -> dict[str, float]:
        """Leave the policy within its limit; its monitors, on responses drawn for that."""
        if self.guard.stopped:
            put_back(passes.model, self.kept)
        if self.job.config.kl_share == 0:
            return {}
        with self.tally.timed("drift"):
            found = self._last_look(passes)
            kl = found["kl_response"]
            if not self.guard.stopped and not self.guard.within(kl, self.job.steps):
                put_back(passes.model, self.kept)
                found = self._last_look(passes)
        return found

    def store(self, folder: Path) -> dict[str, Any]:
        """Put what a resumed phase needs into a checkpoint; returns the facts beside it."""
        if self.kept:
            write_adapter(folder / _KEPT, self.kept)
        watch = {"first": dict(self.watch.first), "told": dict(self.watch.told)}
        return {"watch": watch, "kept_step": self.guard.kept_step, "stopped": self.guard.stopped}

    def restore(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Take over what ``store`` left."""
        self.watch.first.update(facts["watch"]["first"])
        self.watch.told.update(facts["watch"]["told"])
        self.guard.kept_step, self.guard.stopped = facts["kept_step"], facts["stopped"]
        if (folder / _KEPT).exists():
            self.kept = read_adapter(folder / _KEPT)

    def _last_look(self, passes: Passes) -> dict[str, float]:
        config, last = self.job.config, self.job.order[-1]
        states = last[: self._measured_states(len(last))]
        indices = [i for i in states for _ in range(config.group_size)]
        temperatures = [config.sampling.temperature] * len(indices)
        drawn = draw_candidates(self.job, passes.model, indices, "final", temperatures)
        batch = Batch.of(self.job, indices, [d.token_ids for d in drawn], temperatures)
        moved = self._moved(batch, range(len(indices)), passes)
        return {
            "kl_response": moved.per_response,
            "kl": moved.per_token,
            "entropy": moved.entropy,
            "completion_tokens": float(batch.lengths().double().mean()),
            **batch.monitors(self.job),
        }

    def _moved(
        self, batch: Batch, rows: Sequence[int], passes: Passes, known: KeptStates | None = None
    ) -> Moved:
        responses = batch.padded(self.job, rows)
        shared = passes.shares(responses.ids, responses.mask, responses.length)
        return measure(
            self.job.backbone,
            passes.model,
            responses,
            temperature=self.job.config.sampling.temperature,
            size=self.job.config.group_size,
            shared=shared,
            autocast=passes.autocast,
            known=known if shared else None,
        )

    def _measured_states(self, states: int) -> int:
        """How many of a batch's states KL is measured at."""
        share = self.job.config.kl_share
        if share is None:
            share = 1 / 2 if self.guard.active else 1 / 8
        return min(states, max(1, math.ceil(share * states))) if share else 0
