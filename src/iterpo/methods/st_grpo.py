"""ST-GRPO: the myopic baseline; IterPO at gamma = 0 (section 4.2, appendix E.3)."""

from __future__ import annotations

from iterpo.domain import PolicyRef
from iterpo.methods.base import RoundBatch, Workspace

__all__ = ["StGrpo"]


class StGrpo:
    """Every turn is its own problem: the target is the current turn's reward alone."""

    def update(self, policy: PolicyRef, batch: RoundBatch, workspace: Workspace) -> PolicyRef:
        """One round, with no credit for later turns."""
        reward = workspace.fit_q(policy, batch, gamma=0.0)
        return workspace.improve(policy, batch, reward=reward)
