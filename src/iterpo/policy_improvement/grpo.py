"""GRPO: each candidate against its group, in units of the group's deviation."""

from __future__ import annotations

from pathlib import Path

from iterpo.policy_improvement.advantages import group_advantages
from iterpo.policy_improvement.base import ImproveConfig
from iterpo.policy_improvement.objectives import Advantages, Scored

__all__ = ["Grpo"]


class Grpo:
    """The paper's operator (section 3.1); fields of ``grpo`` vary it."""

    whole_responses = False

    def __init__(self, config: ImproveConfig) -> None:
        self.config = config
        given = config.grpo.get("scale_rewards", True)
        self.scale = {True: "group", False: "none"}.get(given, given)

    def advantages(self, batch: Scored) -> Advantages:
        """Advantages (N,) of a batch."""
        config = self.config
        return group_advantages(
            batch.rewards,
            config.group_size,
            scale=self.scale,
            std_floor=config.std_floor,
            epsilon=config.std_epsilon,
            tie_tolerance=config.tie_tolerance,
        )

    def store(self, folder: Path) -> None:
        """Nothing is kept from batch to batch."""

    def restore(self, folder: Path) -> None:
        """Nothing is kept from batch to batch."""
