"""A deploy phase in which the policy really speaks, but to nobody: fast, and returns differ."""

from __future__ import annotations

from pathlib import Path

from iterpo.artifacts import seal
from iterpo.domain import Sampling
from iterpo.experiments.events import Report
from iterpo.experiments.lineage import policy_of_round, round_of
from iterpo.experiments.plan import Plan
from iterpo.measure import measure
from iterpo.store import write_conversations
from methods.conftest import sampled_talks

__all__ = ["deploy"]


def deploy(folder: Path, plan: Plan, key: str, report: Report) -> None:
    """16 conversations a split, drawn by the plan's seed and the round."""
    i = round_of(key)
    policy = policy_of_round(folder, plan, i)
    facts: dict[str, object] = {"policy": policy.id, "round": i}
    for n, split in enumerate(("train", "heldout")):
        talks = sampled_talks(policy, 16, Sampling(max_new_tokens=4), 2 * i + n + 10 * plan.seed)
        write_conversations(folder / key / split / "conversations.jsonl", talks)
        seal(folder / key / split, "conversations", {})
        facts[split] = measure(talks, plan.q.gamma).to_dict()
    seal(folder / key, "deploy", facts)
