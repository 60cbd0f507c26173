"""MT-PPO: PPO on whole logged conversations with a value head (appendix E.6)."""

from __future__ import annotations

from dataclasses import dataclass, field

from iterpo.domain import PolicyRef
from iterpo.methods.base import RoundBatch, Workspace
from iterpo.policy_improvement.logged import learner
from iterpo.policy_improvement.ppo_config import PpoConfig

__all__ = ["MtPpo"]


@dataclass(frozen=True, slots=True)
class MtPpo:
    """Epochs of PPO on a fixed batch: no Q, and no responses but those that were logged."""

    Options = PpoConfig

    options: PpoConfig = field(default_factory=PpoConfig)
    """Settings."""

    def update(self, policy: PolicyRef, batch: RoundBatch, workspace: Workspace) -> PolicyRef:
        """One round: V of the policy, then clipped gradients away from it."""
        own, q = workspace.own(batch), workspace.q
        train = learner(
            "mt_ppo", own, self.options, workspace.stage, gamma=q.gamma, unit=q.discount_unit
        )
        return workspace.learn(policy, batch, train)
