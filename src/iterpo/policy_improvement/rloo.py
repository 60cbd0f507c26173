"""RLOO: REINFORCE on whole responses, each against the mean of the others at its state.

The loss of a step is the mean over responses of -A log pi(response), with one update per batch, so
that the ratio of the trainer's surrogate is 1 and its gradient is REINFORCE's.
"""

from __future__ import annotations

from pathlib import Path

from iterpo.policy_improvement.advantages import leave_one_out
from iterpo.policy_improvement.base import ImproveConfig
from iterpo.policy_improvement.objectives import Advantages, Scored

__all__ = ["Rloo"]


class Rloo:
    """Advantages are in reward units: nothing is divided by a deviation."""

    whole_responses = True

    def __init__(self, config: ImproveConfig) -> None:
        self.config = config

    def advantages(self, batch: Scored) -> Advantages:
        """Advantages (N,) of a batch."""
        config = self.config
        return leave_one_out(batch.rewards, config.group_size, tie_tolerance=config.tie_tolerance)

    def store(self, folder: Path) -> None:
        """Nothing is kept from batch to batch."""

    def restore(self, folder: Path) -> None:
        """Nothing is kept from batch to batch."""
