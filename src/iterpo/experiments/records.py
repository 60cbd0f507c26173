"""Records of a run: flat rows by round and split, and means by kernel, which outlive its folder."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from iterpo.artifacts import MANIFEST, file_sha256, write_atomic
from iterpo.domain import (
    Conversation,
    Ending,
    Role,
    Split,
    action_indices,
    discounted_return,
)
from iterpo.experiments.plan import Plan
from iterpo.experiments.results import RunFacts, read_run
from iterpo.experiments.shared_batch import FIRST, origin_of
from iterpo.experiments.study import Cell
from iterpo.measure import measure
from iterpo.measure.gain_split import worth
from iterpo.measure.returns import scored
from iterpo.store import METRICS, read_conversations, read_metrics

__all__ = [
    "RECORDS",
    "kernel_means",
    "log_facts",
    "read_records",
    "run_records",
    "write_records",
    "yardstick_records",
]

RECORDS = "records.json"
"""Name of the file in the folder of a cell, and in that of a study."""

_MEASURES = ("J_agent_turn", "J_message", "agreement", "turns", "reward")
_NO_UPDATE = dict.fromkeys(
    (
        *("q_train", "q_judge", "kl", "entropy", "length", "verdict"),
        *("steps", "candidates", "candidate_tokens"),
    )
)


def run_records(folder: Path, cell: Cell) -> dict[str, list[dict[str, Any]]]:
    """``records`` and ``kernels`` of a finished run.

    Raises:
        ArtifactError: if a phase of it is corrupt, or its round-0 batch not the one it took.
    """
    run = read_run(folder)
    origin = origin_of(folder)
    shared_s = origin["wall_s"] if origin else 0.0
    batch = file_sha256(folder / FIRST / MANIFEST)[:12]
    rows: list[dict[str, Any]] = []
    kernels: list[dict[str, Any]] = []
    for r in run.rounds:
        made = _made(run, r.round - 1) if r.round else _NO_UPDATE
        wall = sum(t["wall_s"] for t in run.timings if t["phase"].startswith(f"round-{r.round}/"))
        for split in Split:
            place = folder / f"round-{r.round}" / "deploy" / split.value
            played = read_conversations(place)
            key = {**_key(cell), "round": r.round, "split": split.value}
            rows.append(
                key
                | {"selected": r.round == run.best_round, "policy": r.deploy["policy"]}
                | log_facts(r.deploy[split.value], played, run.plan)
                | made
                | {"wall_s": round(wall + (0 if r.round else shared_s), 1)}
                | {"round_0": batch, "plan": run.plan.identity()[:12]}
            )
            kernels += [key | row for row in kernel_means(played, run.plan)]
    return {"records": rows, "kernels": kernels}


def log_facts(
    facts: Mapping[str, Any], played: Sequence[Conversation], plan: Plan
) -> dict[str, Any]:
    """What a record tells of a measured log: J and its company, its parts, and what it cost.

    Args:
        facts: ``Measurement.to_dict()`` of the log.
        played: The log.
        plan: With the discount.
    """
    parts = worth(played, plan.q.gamma)
    best = facts.get("j_star_agent_turn")
    return {
        **{name: facts[name]["mean"] for name in _MEASURES},
        "J_se": facts["J_agent_turn"]["se"],
        "J_star": best["mean"] if best else None,
        "discount": parts.discount,
        "deal": parts.deal,
        "no_deal": parts.no_deal,
        "conversations": len(played),
        "tokens": sum(map(_tokens, played)),
    }


def kernel_means(played: Sequence[Conversation], plan: Plan) -> list[dict[str, Any]]:
    """Means of each kernel's conversations, those left out that have no reward or were explored."""
    groups: dict[str, list[Conversation]] = defaultdict(list)
    for c in scored(played):
        groups[c.kernel_id].append(c)
    gamma = plan.q.gamma
    return [
        {
            "kernel": kernel,
            "n": len(group),
            "J_agent_turn": _mean([discounted_return(c, gamma, "agent_turn") for c in group]),
            "J_message": _mean([discounted_return(c, gamma, "message") for c in group]),
            "agreement": _mean([float(c.outcome.ending is Ending.AGREED) for c in group]),
            "turns": _mean([float(len(action_indices(c.turns))) for c in group]),
            "reward": _mean([float(c.outcome.reward or 0.0) for c in group]),
        }
        for kernel, group in groups.items()
    ]


def yardstick_records(
    cell: Cell, plan: Plan, logs: Mapping[Split, Sequence[Conversation]], wall_s: float
) -> dict[str, list[dict[str, Any]]]:
    """The same of a fixed agent, which has one round and no update."""
    rows, kernels = [], []
    for split, played in logs.items():
        key = {**_key(cell), "round": 0, "split": split.value}
        rows.append(
            key
            | {"selected": True, "policy": cell.method}
            | log_facts(measure(played, plan.q.gamma).to_dict(), played, plan)
            | _NO_UPDATE
            | {"wall_s": round(wall_s, 1), "round_0": None, "plan": plan.identity()[:12]}
        )
        kernels += [key | row for row in kernel_means(played, plan)]
    return {"records": rows, "kernels": kernels}


def write_records(folder: Path, plan: Plan, found: Mapping[str, Any]) -> None:
    """Keep a cell's records under the identity of its plan; the cell is finished from then on."""
    text = json.dumps({"plan": plan.identity(), **found}, allow_nan=False)
    write_atomic(folder / RECORDS, text + "\n")


def read_records(folder: Path, plan: Plan) -> dict[str, Any] | None:
    """The records of a finished cell; None where there are none, or those of another plan."""
    try:
        found: dict[str, Any] = json.loads((folder / RECORDS).read_text())
    except (OSError, ValueError):
        return None
    return found if found.get("plan") == plan.identity() else None


def _key(cell: Cell) -> dict[str, Any]:
    return {"game": cell.environment, "method": cell.method, "seed": cell.seed}


def _made(run: RunFacts, i: int) -> dict[str, Any]:
    """How the update that made the policy of round i + 1 went, and what it took."""
    facts = run.rounds[i].update or {}
    tables = run.folder / f"round-{i}" / "update" / "metrics"
    table = tables / f"improve-{METRICS}"
    steps = [row["values"] for row in read_metrics(table)] if table.is_file() else []
    last = steps[-1] if steps else {}
    evidence = facts.get("evidence", {})
    gains = {k: (evidence.get(k) or {}).get("mean") for k in ("q_gain", "judge_gain")}
    improve = run.plan.improve
    drawn = [s["completion_tokens"] for s in steps if s.get("completion_tokens") is not None]
    group = improve.prompts_per_step * improve.group_size
    return {
        "q_train": gains["q_gain"],
        "q_judge": gains["judge_gain"],
        "kl": evidence.get("kl", last.get("kl")),
        "entropy": last.get("entropy"),
        "length": last.get("completion_tokens"),
        "verdict": facts.get("verdict"),
        "steps": len(steps),
        "candidates": group * len(drawn),
        "candidate_tokens": round(group * math.fsum(drawn)),
    }


def _tokens(conversation: Conversation) -> int:
    return sum(
        len(turn.sampled.token_ids or turn.sampled.logprobs or ())
        for turn in conversation.turns
        if turn.sampled and turn.role is Role.AGENT
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
