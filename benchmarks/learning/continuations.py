"""What is a message worth? Play on behind it with the policy and the scripted partner."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from iterpo import environments
from iterpo.agents.base import Seat
from iterpo.agents.local import LocalPolicy
from iterpo.agents.scripted import Bargaining, ScriptedPartner
from iterpo.collect import Table, play
from iterpo.domain import Conversation, Role, Turn, action_indices, decisions, derive
from iterpo.experiments.plan import Plan
from iterpo.models.backbone import Backbone

Place = tuple[Any, Conversation, int]
"""Scenario, the conversation so far, and the agent's turn (from 1) that is said anew."""
FIRST_ROUND = 10_000
"""``Seat.round`` of the first play; the others count up from it, so that each has its own."""


def table_of(plan: Plan, backbone: Backbone) -> Table:
    """A plan's game between a policy and the scripted partner."""
    env = environments.make(plan.environment.name, **plan.environment.options)
    partner = ScriptedPartner(cast(Bargaining, env), plan.partner.seed)
    return Table(env, LocalPolicy(backbone, plan.collect.sampling), partner)


def returns_behind(
    table: Table, plan: Plan, places: Sequence[Place], texts: Sequence[str], continuations: int
) -> list[list[float]]:
    """Returns of several plays behind each text (n, up to ``continuations``).

    The texts of one place meet the same draws: their differences are then less noisy.
    """

    async def all_of_them() -> list[Conversation]:
        jobs = []
        for n, ((scenario, logged, t), text) in enumerate(zip(places, texts, strict=True)):
            begun = logged.turns[: action_indices(logged.turns)[t - 1]]
            for k in range(continuations):
                seed = derive(plan.seed, "simulate", logged.id, t, k)
                number = FIRST_ROUND + n * continuations + k
                seat = Seat(scenario, Role.AGENT, number, logged.replica, seed)
                jobs.append(play(table, seat, (*begun, Turn(Role.AGENT, text))))
        return list(await asyncio.gather(*jobs))

    played = asyncio.run(all_of_them())
    found = []
    for n, (_, _, t) in enumerate(places):
        of_place = played[n * continuations : (n + 1) * continuations]
        rows = [decisions(c, plan.q.gamma, plan.q.discount_unit) for c in of_place]
        found.append([r[t - 1].ret for r in rows if r])
    return found
