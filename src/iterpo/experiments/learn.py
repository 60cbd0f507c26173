"""The update phase: logged conversations in, pi_{i+1} out; no simulator is in reach."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from iterpo.artifacts import open_sealed, seal, write_atomic
from iterpo.domain import PolicyRef, decisions
from iterpo.errors import ConformanceError
from iterpo.experiments.events import Event, Report
from iterpo.experiments.lineage import policy_of_round, round_of, start_of_update
from iterpo.experiments.plan import Plan
from iterpo.experiments.roll_back import fall
from iterpo.methods import RoundBatch, make
from iterpo.methods.base import PLUGINS
from iterpo.methods.workspace import FolderWorkspace, Settings
from iterpo.policy_evaluation.health import convergence
from iterpo.policy_evaluation.qfunction import QFunction
from iterpo.store import read_conversations

__all__ = ["update"]

_CODE = "method.txt"
"""Which code of a method of another package an update was made by."""


@dataclass(frozen=True, slots=True)
class _Start:
    """Where an update starts."""

    policy: PolicyRef
    batch: RoundBatch
    facts: dict[str, Any]
    attempt: int
    """Updates that started from this very policy before."""


def update(folder: Path, plan: Plan, key: str, report: Report) -> None:
    """Apply the plan's method to the round's log; the phase folder is sealed at the end."""
    i = round_of(key)
    start = _start(folder, plan, i)
    policy, batch = start.policy, start.batch

    def progress(stage: str, done: int, total: int, facts: Mapping[str, float]) -> None:
        report(Event("progress", key, stage, done, total, dict(facts)))

    q, improve = plan.operators_of_round(i)
    factor = plan.roll_back.step_factor**start.attempt
    if start.attempt:
        improve = replace(improve, learning_rate=improve.learning_rate * factor)
    settings = Settings(
        q,
        improve,
        plan.policy.dtype,
        plan.policy.device,
        tracking=folder / "logs" / f"{key.replace('/', '-')}-tracking",
        verdict=plan.verdict,
        step_factor=factor,
    )
    last = folder / f"round-{i - 1}" / "update" if i else None
    workspace = FolderWorkspace(folder / key, settings, progress, last)
    method = make(plan.method.name, plan.method.options)
    if _other_code(folder / key, plan.method.name):
        report(Event("note", key, text="begun again: the code of its method has changed since"))
    new = method.update(policy, batch, workspace)
    _check_result(new, (policy, workspace.given), plan.method.name)
    # A method that found nothing to learn from gives the policy back as it is.
    left = "policy" if new.id != policy.id else "parent"
    facts: dict[str, Any] = {"policy": new.id, "parent": policy.id, "next": left, **start.facts}
    if workspace.notes:
        facts["notes"] = workspace.notes
    health = folder / key / "q_health.json"
    if health.exists():
        facts["q_health"] = json.loads(health.read_text())
        if q.pool_rounds:
            pooled = facts["q_health"]["pooled"]
            facts["pooled_rounds"] = [r["round"] for r in pooled if r["rows"]]
    verdict = workspace.verdict(policy, new, batch)
    if verdict is not None:
        facts |= verdict.to_dict()
        if verdict.verdict == "refused" and plan.verdict.on_refused == "discard":
            facts["next"] = "parent"
    if plan.stop_when_q_converged is not None and i > 0:
        before = start_of_update(folder, plan, i - 1)
        # Q of the same policy again is no step of the iteration that could have converged.
        if before.id != policy.id and facts["start_round"] == i:
            old = workspace.stored_q(before, folder / f"round-{i - 1}" / "update" / "q")
            now = workspace.stored_q(policy, folder / key / "q")
            facts["q_change"] = _q_change(now, old, batch)
    seal(folder / key, "update", facts)


def _other_code(folder: Path, method: str) -> bool:
    """Remove what an unfinished update made by other code of its method, which may differ in all.

    Only methods of other packages are looked at: iterpo's own change by its versions, which are
    told where a run goes on.
    """
    found = PLUGINS.code(method)
    if found is None:
        return False
    note, now = folder / _CODE, " ".join(found)
    other = note.exists() and note.read_text(encoding="utf-8") != now
    if other:
        shutil.rmtree(folder)
    write_atomic(note, now)
    return other


def _check_result(new: object, known: tuple[PolicyRef | None, ...], method: str) -> None:
    """What comes next must be a policy that is stored where it is looked for.

    Raises:
        ConformanceError: if it isn't.
    """
    if new is not None and new in known:
        return
    given = new.id if isinstance(new, PolicyRef) else repr(new)[:100]
    raise ConformanceError(
        f"update of method {method!r} returned {given}; it must return the PolicyRef that "
        "workspace.learn or workspace.improve gave, or the policy that it was given"
    )


def _start(folder: Path, plan: Plan, i: int) -> _Start:
    """From the policy deployed last, or where it fell from the best: with all logs of that one."""
    logs = [read_conversations(folder / f"round-{j}" / "deploy" / "train") for j in range(i + 1)]
    policies = [policy_of_round(folder, plan, j) for j in range(i + 1)]
    rounds: dict[str, list[int]] = {}  # by policy: one that was kept is deployed more than once
    for j, policy in enumerate(policies):
        rounds.setdefault(policy.id, []).append(j)
    latest = policies[i].id
    order = [name for name in rounds if name != latest] + [latest]
    found = None
    if plan.roll_back.enabled:
        pooled = [[c for j in rounds[name] for c in logs[j]] for name in order]
        found = fall(pooled, plan.roll_back, plan.q.gamma, plan.q.discount_unit)
    chosen = order[found.best] if found is not None and found.rolls_back else latest
    used = rounds[chosen]
    start = i if chosen == latest else used[-1]
    facts: dict[str, Any] = {"start_round": start, "batch_rounds": used}
    if found is not None:
        facts["roll_back"] = {**found.to_dict(), "best_policy": order[found.best]}
    others = tuple(logs[j] for j in range(i + 1) if j not in used)
    batch = RoundBatch(i, tuple(c for j in used for c in logs[j]), policies[0], others)
    return _Start(policies[start], batch, facts, _attempts(folder, i, chosen))


def _attempts(folder: Path, i: int, policy: str) -> int:
    updates = [folder / f"round-{j}" / "update" for j in range(i)]
    return sum(open_sealed(u)["facts"].get("parent") == policy for u in updates)


def _q_change(now: QFunction, before: QFunction, batch: RoundBatch) -> float | None:
    """Distance of Q_i and Q_{i-1} on the rows of round i, relative to the spread of returns."""
    config = now.config  # the method may have overruled the plan's gamma
    rows = [
        row for c in batch.conversations for row in decisions(c, config.gamma, config.discount_unit)
    ]
    change = convergence(now, before, rows)
    return change if change is not None and math.isfinite(change) else None
