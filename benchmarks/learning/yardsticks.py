"""Fixed agents on the kernels of a benchmark's cells: what bargaining without a model is worth."""

from __future__ import annotations

import time
from typing import Any, cast

from cells import Cell, measured, short

from iterpo import environments
from iterpo.agents.base import AgentFactory
from iterpo.agents.scripted import Bargaining, ScriptedPartner
from iterpo.agents.yardsticks import FirstCounter, Oracle
from iterpo.collect import Table, collect, seats
from iterpo.domain import Split
from iterpo.experiments.kernels import draw_scenarios
from iterpo.experiments.plan import Plan
from iterpo.measure import measure

YARDSTICKS = {"first-counter": FirstCounter, "oracle": Oracle}


def yardstick_rows(plan: Plan, cell: Cell) -> list[dict[str, Any]]:
    """A fixed agent on the kernels of a plan, against the same partners."""
    game, arm, seed = cell
    env = environments.make(plan.environment.name, **plan.environment.options)
    bargaining = cast(Bargaining, env)
    partner = ScriptedPartner(bargaining, plan.partner.seed)
    agent: AgentFactory = YARDSTICKS[arm](bargaining)
    rows = []
    for split in Split:
        per = plan.collect.per_scenario if split is Split.TRAIN else plan.heldout.per_scenario
        begun = time.monotonic()
        played = collect(
            Table(env, agent, partner),
            seats(draw_scenarios(env, plan, split, 0), per, round=0, seed=plan.seed),
            j_star=lambda scenario: partner.j_star(scenario, plan.q.gamma),
        )
        facts = measure(played, plan.q.gamma).to_dict()
        wall = time.monotonic() - begun
        row: dict[str, Any] = {"game": game, "arm": arm, "seed": seed, "round": 0}
        row["split"] = split.value
        row |= {"selected": True, "wall_s": round(wall, 3), "plan": short(plan)}
        rows.append(row | measured(facts))
    return rows
