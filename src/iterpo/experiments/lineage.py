"""Which policy a round deploys: pi_0 is the base model, pi_i what update i-1 left."""

from __future__ import annotations

from pathlib import Path

from iterpo.domain import PolicyRef
from iterpo.experiments.plan import Plan
from iterpo.models.checkpoints import load_policy, read_policy

__all__ = ["policy_of_round", "round_of"]


def policy_of_round(folder: Path, plan: Plan, i: int) -> PolicyRef:
    """pi_i of the run in ``folder``.

    Raises:
        ArtifactError: if its checkpoint is missing, corrupt or truncated.
    """
    if i == 0:
        return load_policy(plan.policy.model)
    return read_policy(folder / f"round-{i - 1}" / "update" / "policy")


def round_of(key: str) -> int:
    """Round number in a phase key such as ``round-3/deploy``."""
    return int(key.partition("/")[0].removeprefix("round-"))
