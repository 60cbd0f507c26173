"""The update phase: logged conversations in, pi_{i+1} out; no simulator is in reach."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from iterpo.artifacts import seal
from iterpo.domain import decisions
from iterpo.experiments.events import Event, Report
from iterpo.experiments.lineage import policy_of_round, round_of
from iterpo.experiments.plan import Plan
from iterpo.methods import RoundBatch, make
from iterpo.methods.workspace import FolderWorkspace, Settings
from iterpo.policy_evaluation.health import convergence
from iterpo.policy_evaluation.qfunction import QFunction
from iterpo.store import read_conversations

__all__ = ["update"]


def update(folder: Path, plan: Plan, key: str, report: Report) -> None:
    """Apply the plan's method to the round's log; the phase folder is sealed at the end."""
    i = round_of(key)
    logs = [read_conversations(folder / f"round-{j}" / "deploy" / "train") for j in range(i + 1)]
    policy = policy_of_round(folder, plan, i)
    batch = RoundBatch(i, logs[i], policy_of_round(folder, plan, 0), tuple(logs[:i]))

    def progress(stage: str, done: int, total: int, facts: Mapping[str, float]) -> None:
        report(Event("progress", key, stage, done, total, dict(facts)))

    q, improve = plan.operators_of_round(i)
    tracking = folder / "logs" / f"{key.replace('/', '-')}-tracking"
    settings = Settings(q, improve, plan.policy.dtype, plan.policy.device, tracking)
    workspace = FolderWorkspace(folder / key, settings, progress)
    new = make(plan.method.name).update(policy, batch, workspace)
    facts: dict[str, Any] = {"policy": new.id, "parent": policy.id}
    health = folder / key / "q_health.json"
    if health.exists():
        facts["q_health"] = json.loads(health.read_text())
    if plan.stop_when_q_converged is not None and i > 0:
        old = folder / f"round-{i - 1}" / "update" / "q"
        before = workspace.stored_q(policy_of_round(folder, plan, i - 1), old)
        now = workspace.stored_q(policy, folder / key / "q")
        facts["q_change"] = _q_change(now, before, batch)
    seal(folder / key, "update", facts)


def _q_change(now: QFunction, before: QFunction, batch: RoundBatch) -> float | None:
    """Distance of Q_i and Q_{i-1} on the rows of round i, relative to the spread of returns."""
    config = now.config  # the method may have overruled the plan's gamma
    rows = [
        row for c in batch.conversations for row in decisions(c, config.gamma, config.discount_unit)
    ]
    change = convergence(now, before, rows)
    return change if change is not None and math.isfinite(change) else None
