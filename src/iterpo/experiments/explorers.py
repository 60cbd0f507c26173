"""Explorers: the agent of a training batch under all that the plan explores in that round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from iterpo.agents.optimist import CHOICE, Optimistic
from iterpo.agents.persona import Exploring
from iterpo.artifacts import is_sealed
from iterpo.collect import Table
from iterpo.domain import Conversation
from iterpo.experiments.lineage import start_of_update
from iterpo.experiments.plan import Plan
from iterpo.experiments.speakers import prompt_style
from iterpo.models.backbone import load
from iterpo.policy_evaluation.qfunction import QFunction, stored_quantization
from iterpo.policy_evaluation.upper_bound import UpperBound

__all__ = ["Explorers", "explorers"]


@dataclass(frozen=True, slots=True)
class Explorers:
    """Who plays the training kernels of a round."""

    table: Table
    """Environment and agents."""
    q_round: int | None = None
    """Round whose Q says what is promising; None without optimism, or without a Q."""
    why: str = ""
    """Why the plan's optimism has no effect; empty where it has one."""

    def facts(self, conversations: Sequence[Conversation]) -> dict[str, Any]:
        """What the log holds of it; counted from the log, so that a resumed batch tells the same.

        ``drawn``: conversations with an optimistic message planned; ``said``: those that got as
        far, so that Q has a row more at a response that the policy might not have said.
        """
        drawn = [c for c in conversations if c.exploration and c.exploration.traits == CHOICE]
        said = [c for c in drawn if any(turn.off_policy for turn in c.turns)]
        told = {"drawn": len(drawn), "said": len(said), "q_round": self.q_round}
        return {**told, "why": self.why} if self.why else told


def explorers(table: Table, plan: Plan, folder: Path, i: int) -> Explorers:
    """The table of round i's training kernels.

    Args:
        table: With the policy's own agents.
        plan: What is explored.
        folder: Run folder, with the Q of the rounds before.
        i: Round; the one after the last planned update is only measured, so it is not explored.
    """
    explore, optimism = plan.collect.explore, plan.collect.optimism
    agent = table.agent
    if i == plan.rounds:
        return Explorers(table, why="no Q is fitted after the last round, so nothing was explored")
    if explore is not None:
        agent = Exploring(agent, explore, prompt_style(table.environment))
    if optimism is None:
        return Explorers(replace(table, agent=agent))
    if i == 0:
        why = "no Q has been fitted before round 0, so nothing was explored optimistically"
        return Explorers(replace(table, agent=agent), why=why)
    place = folder / f"round-{i - 1}" / "update" / "q"
    if not is_sealed(place):
        why = f"the method stored no Q in round {i - 1}, so nothing was explored optimistically"
        return Explorers(replace(table, agent=agent), why=why)
    score = UpperBound(_stored_q(place, plan, folder, i - 1), optimism.scale)
    chosen = Optimistic(table.agent, score, optimism, inner=agent)
    return Explorers(replace(table, agent=chosen), q_round=i - 1)


def _stored_q(place: Path, plan: Plan, folder: Path, i: int) -> QFunction:
    """Q of round i on weights of its own: those of the policy that it was fitted on."""
    backbone = load(
        start_of_update(folder, plan, i),
        dtype=plan.policy.dtype,
        device=plan.policy.device,
        quantize=stored_quantization(place),
    )
    return QFunction.load(place, backbone)
