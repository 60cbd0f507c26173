"""IterPO: fit Q to Monte-Carlo returns, then single-turn RL on Q (Algorithm 1)."""

from __future__ import annotations

from iterpo.domain import PolicyRef
from iterpo.methods.base import RoundBatch, Workspace

__all__ = ["IterPO"]


class IterPO:
    """Approximate policy iteration from logged conversations; the proposed method of the paper."""

    def update(self, policy: PolicyRef, batch: RoundBatch, workspace: Workspace) -> PolicyRef:
        """One round: Observation 3.5, then Observation 3.1."""
        q = workspace.fit_q(policy, batch)
        return workspace.improve(policy, batch, reward=q)
