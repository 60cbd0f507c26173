"""The update phase: logged conversations in, pi_{i+1} out; no simulator is in reach."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from iterpo.artifacts import seal
from iterpo.domain import PolicyRef, decisions
from iterpo.experiments.events import Event, Report
from iterpo.experiments.lineage import policy_of_round, round_of
from iterpo.experiments.plan import Plan
from iterpo.methods import RoundBatch, make
from iterpo.methods.workspace import FolderWorkspace, Settings
from iterpo.models.backbone import load
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
    settings = Settings(q, improve, plan.policy.dtype, plan.policy.device)
    workspace = FolderWorkspace(folder / key, settings, progress)
    new = make(plan.method.name).update(policy, batch, workspace)
    facts: dict[str, Any] = {"policy": new.id, "parent": policy.id}
    health = folder / key / "q_health.json"
    if health.exists():
        facts["q_health"] = json.loads(health.read_text())
    if plan.stop_when_q_converged is not None and i > 0:
        facts["q_change"] = _q_change(folder, plan, i, policy, batch)
    seal(folder / key, "update", facts)


def _q_change(
    folder: Path, plan: Plan, i: int, policy: PolicyRef, batch: RoundBatch
) -> float | None:
    """Distance of Q_i and Q_{i-1} on the rows of round i, relative to the spread of returns."""
    rows = [r for c in batch.conversations for r in decisions(c, plan.q.gamma)]

    def stored(j: int, ref: PolicyRef) -> QFunction:
        quantize: Literal["nf4"] | None = "nf4" if plan.q.backbone == "nf4" else None
        where = plan.policy
        backbone = load(ref, dtype=where.dtype, device=where.device, quantize=quantize)
        return QFunction.load(folder / f"round-{j}" / "update" / "q", backbone)

    old = stored(i - 1, policy_of_round(folder, plan, i - 1))
    return convergence(stored(i, policy), old, rows)
