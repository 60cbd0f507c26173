"""Which kernels a round plays: drawn from the game by the plan's data seed, split by split."""

from __future__ import annotations

from iterpo.domain import Scenario, Split
from iterpo.environments.base import Environment
from iterpo.experiments.plan import Plan

__all__ = ["draw_scenarios"]


def draw_scenarios(env: Environment, plan: Plan, split: Split, i: int) -> tuple[Scenario, ...]:
    """Kernels of round i: the same in every round, or fresh ones where the plan says so."""
    if split is Split.HELDOUT:
        return env.scenarios(split, plan.heldout.scenarios, plan.collect.data_seed)
    n = plan.collect.scenarios
    if plan.collect.kernels == "fixed":
        return env.scenarios(split, n, plan.collect.data_seed)
    return env.scenarios(split, n * (i + 1), plan.collect.data_seed)[n * i :]
