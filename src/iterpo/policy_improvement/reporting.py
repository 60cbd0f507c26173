"""Metrics of each training step, handed to the run's own table and to the progress display."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from iterpo.policy_improvement.job import Job, Tally

__all__ = ["Reporter"]

_METRICS = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "kl": "kl",
    "entropy": "entropy",
    "ratio_clipped": "clip_ratio/region_mean",
}


class Reporter(TrainerCallback):  # type: ignore[misc]
    """Hands each step's metrics to the run's own table and to the progress display."""

    def __init__(self, tally: Tally, job: Job) -> None:
        self.tally = tally
        self.job = job

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Called by the trainer after every step, before a checkpoint is written."""
        del args, control
        if not logs or "loss" not in logs:
            return
        metrics = {k: v for k, v in self.tally.latest.items() if v == v}
        for ours, theirs in _METRICS.items():
            if logs.get(theirs) is not None:
                metrics[ours] = float(logs[theirs])
        step = int(state.global_step)
        if self.job.record is not None:
            self.job.record(step, metrics)
        if self.job.progress is not None:
            self.job.progress(step, self.job.steps, metrics)
