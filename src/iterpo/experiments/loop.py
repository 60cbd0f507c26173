"""Algorithm 1 on one screen: deploy and log, fit Q, improve, measure, keep the best round."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iterpo.artifacts import write_atomic
from iterpo.experiments import processes
from iterpo.experiments.events import Event, Report, ignore
from iterpo.experiments.ledger import Ledger
from iterpo.experiments.plan import Plan

__all__ = ["RESULT", "RunResult", "run"]

RESULT = "result.json"
Execute = Callable[[Path, str, int, Report], None]
"""Runs one phase of a run folder: (folder, key, lock file descriptor, report)."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run came to."""

    folder: Path
    """Run folder."""
    rounds: tuple[dict[str, Any], ...]
    """Facts of every deployed policy pi_0 … pi_K: measurements on train and held-out kernels."""
    best_round: int
    """Round of the policy with the highest collected J, the one to deploy (section 4.3): its first,
    where it was deployed in several."""
    converged: bool
    """Whether the run stopped early because Q had converged."""


def run(
    plan: Plan,
    folder: Path,
    *,
    resume: bool = False,
    report: Report = ignore,
    execute: Execute = processes.spawn,
) -> RunResult:
    """Run ``plan`` in ``folder``; every finished phase is kept, and a resumed run skips it.

    Args:
        plan: What to do.
        folder: Run folder; new, or with ``resume`` one of the same plan.
        resume: Continue instead of refusing a folder that holds a run.
        report: Receives events (progress, finished phases).
        execute: How a phase runs; by default each in a process of its own.

    Raises:
        ResumeError: if the folder belongs to another plan or is in use.
        PhaseError: if a phase fails; resuming continues there.
    """
    with Ledger.open(folder, plan, resume=resume) as ledger:
        keys: list[str] = []

        def once(key: str) -> dict[str, Any]:
            keys.append(key)
            if ledger.done(key):
                report(Event("skipped", key))
            else:
                report(Event("started", key))
                if told := ledger.note_versions():
                    report(Event("note", key, text=told))
                execute(folder, key, ledger.lock_fd, report)
            facts = ledger.verify(key)
            ledger.note(keys)
            report(Event("finished", key, facts=facts))
            return facts

        once("preflight")
        deployed, converged = [], False
        for i in range(plan.rounds):
            deployed.append(once(f"round-{i}/deploy"))  # log D_i under pi_i; measure pi_i
            update = once(f"round-{i}/update")  # fit Q_i; improve pi_i to pi_{i+1}
            converged = _converged(plan, update)
            if converged:
                break
        deployed.append(once(f"round-{len(deployed)}/deploy"))
        best = _best(plan, deployed)
        summary = {"best_round": best, "converged": converged, "rounds": deployed}
        write_atomic(folder / RESULT, json.dumps(summary, indent=1, sort_keys=True) + "\n")
    return RunResult(folder, tuple(deployed), best, converged)


def _converged(plan: Plan, update: dict[str, Any]) -> bool:
    """Algorithm 1 of the predecessor paper stops when Q_i has converged (an option here)."""
    change = update.get("q_change")
    limit = plan.stop_when_q_converged
    return limit is not None and change is not None and change < limit


def _best(plan: Plan, deployed: list[dict[str, Any]]) -> int:
    """First round of the policy with the highest J on training kernels; ties go to the earlier.

    J is in the unit of training and over all that a policy was deployed on: with a round of its
    own for each deployment, one that was kept would have several tickets in the draw.
    """
    logs: dict[str, list[tuple[int, float, float]]] = {}  # by policy: round, samples, J
    for i, facts in enumerate(deployed):
        told = facts["train"][f"J_{plan.q.discount_unit}"]
        name = facts.get("policy", f"round {i}")
        logs.setdefault(name, []).append((i, float(told.get("n", 1)), float(told["mean"])))

    def pooled(log: list[tuple[int, float, float]]) -> float:
        return sum(n * j for _, n, j in log) / sum(n for _, n, _ in log)

    return max(logs.values(), key=pooled)[0][0]
