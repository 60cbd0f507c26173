"""Which policy a round deploys: pi_0 is the base model, pi_i what update i-1 left or kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from iterpo.artifacts import is_sealed, open_sealed
from iterpo.domain import PolicyRef
from iterpo.experiments.plan import Plan
from iterpo.models.checkpoints import load_policy, read_policy

__all__ = ["policy_of_round", "round_of", "start_of_update"]


def policy_of_round(folder: Path, plan: Plan, i: int) -> PolicyRef:
    """pi_i of the run in ``folder``.

    It is what update i-1 made, or, where that was refused and discarded, what it started from.

    Raises:
        ArtifactError: if its checkpoint is missing, corrupt or truncated.
    """
    if i == 0:
        return load_policy(plan.policy.model)
    facts = _facts(folder, i - 1)
    if facts.get("next") == "parent":
        return start_of_update(folder, plan, i - 1)
    return read_policy(folder / f"round-{i - 1}" / "update" / "policy")


def start_of_update(folder: Path, plan: Plan, i: int) -> PolicyRef:
    """The policy that update i trained on from: pi_i, or that of the round it rolled back to."""
    return policy_of_round(folder, plan, int(_facts(folder, i).get("start_round", i)))


def round_of(key: str) -> int:
    """Round number in a phase key such as ``round-3/deploy``."""
    return int(key.partition("/")[0].removeprefix("round-"))


def _facts(folder: Path, i: int) -> dict[str, Any]:
    """Facts of a finished update; empty while it goes on."""
    place = folder / f"round-{i}" / "update"
    return dict(open_sealed(place)["facts"]) if is_sealed(place) else {}
