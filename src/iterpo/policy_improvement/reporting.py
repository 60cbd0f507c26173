"""Metrics of each training step, handed to the run's own table and to the progress display."""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback

from iterpo.policy_improvement.job import Job, Tally
from iterpo.policy_improvement.observer import Observer

__all__ = ["Reporter", "batch_metrics"]

_METRICS = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "kl": "kl",
    "ratio_clipped": "clip_ratio/region_mean",
}


def batch_metrics(
    rewards: torch.Tensor, lengths: torch.Tensor, clipped: torch.Tensor, tied: torch.Tensor
) -> dict[str, float]:
    """Facts about the candidates of a batch.

    Args:
        rewards: (N,), NaN where there is none.
        lengths: (N,) tokens of each.
        clipped: (N,) whether it was cut at ``max_new_tokens``.
        tied: (P,) whether a group has no spread.
    """
    scored = rewards[~rewards.isnan()]
    return {
        "reward": float(scored.mean()) if len(scored) else float("nan"),
        "reward_std": float(scored.std()) if len(scored) > 1 else 0.0,
        "completion_tokens": float(lengths.double().mean()),
        "clipped_ratio": float(clipped.double().mean()),
        "frac_tied_groups": float(tied.double().mean()),
        "frac_unscored": 1.0 - len(scored) / max(len(rewards), 1),
    }


class Reporter(TrainerCallback):  # type: ignore[misc]
    """Hands on each step's metrics, watches them for drift, and ends a phase that went too far."""

    def __init__(self, tally: Tally, job: Job, observer: Observer) -> None:
        self.tally = tally
        self.job = job
        self.observer = observer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by the trainer after every update."""
        del args, state
        if self.observer.guard.stopped:
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Called by the trainer after every step, before a checkpoint is written."""
        del args, control
        if not logs or "loss" not in logs:
            return
        metrics = {k: v for k, v in self.tally.latest.items() if v == v}
        for ours, theirs in _METRICS.items():
            # A measured KL stays: TRL's, with beta, is another estimator over the loss's tokens.
            if ours not in metrics and logs.get(theirs) is not None:
                metrics[ours] = float(logs[theirs])
        # Not the trainer's own, which leaves out tied groups, where entropy goes first.
        metrics["entropy"], self.tally.entropy = self.tally.entropy, 0.0
        step = int(state.global_step)
        metrics["drift_alarms"] = float(len(self.observer.watch.check(step, metrics)))
        if self.job.record is not None:
            self.job.record(step, metrics)
        if self.job.progress is not None:
            self.job.progress(step, self.job.steps, metrics)
