"""Yardstick for Q: every candidate is valued by playing on with the scripted partner.

This needs the simulator that IterPO does without, so it is no method of the product: it shows how
far the same improvement step comes when Q is exact but for the noise of its continuations.
Importing the module registers the method `simulated_q`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from iterpo import environments
from iterpo.agents.base import Seat
from iterpo.agents.local import LocalPolicy
from iterpo.agents.scripted import Bargaining, ScriptedPartner
from iterpo.collect import Table, play
from iterpo.domain import (
    Conversation,
    PolicyRef,
    Response,
    Role,
    Split,
    State,
    Turn,
    action_indices,
    decisions,
    derive,
)
from iterpo.experiments.ledger import PLAN
from iterpo.experiments.plan import Plan, load_plan
from iterpo.experiments.rollout import draw_scenarios
from iterpo.methods.base import REGISTRY, RoundBatch
from iterpo.methods.workspace import FolderWorkspace
from iterpo.models.backbone import Backbone, frozen

CONTINUATIONS = 1
"""Plays per candidate; the mean of their returns is its value."""


@dataclass
class ValueBySimulation:
    """A reward: the return of playing on after a response, with the round's policy."""

    backbone: Backbone
    """The policy that logged the batch, whatever is being trained on top of it."""
    plan: Plan
    """Game, partner, sampling and discount."""
    conversations: dict[str, Conversation]
    """The batch by id."""
    scenarios: dict[str, Any]
    """Its kernels by id."""

    id = f"simulation-{CONTINUATIONS}"

    def __call__(self, states: Sequence[State], responses: Sequence[Response]) -> list[float]:
        plan = self.plan
        env = environments.make(plan.environment.name, **plan.environment.options)
        partner = ScriptedPartner(cast(Bargaining, env), plan.partner.seed)
        table = Table(env, LocalPolicy(self.backbone, plan.collect.sampling), partner)

        async def all_of_them() -> list[Conversation]:
            return await asyncio.gather(
                *(
                    play(table, self._seat(state, n, k), self._begun(state, response))
                    for n, (state, response) in enumerate(zip(states, responses, strict=True))
                    for k in range(CONTINUATIONS)
                )
            )

        with frozen(self.backbone):
            played = asyncio.run(all_of_them())
        values = []
        for n, state in enumerate(states):
            rows = [
                decisions(c, plan.q.gamma, plan.q.discount_unit)
                for c in played[n * CONTINUATIONS : (n + 1) * CONTINUATIONS]
            ]
            returns = [r[state.t - 1].ret for r in rows if r]
            values.append(sum(returns) / len(returns) if returns else float("nan"))
        return values

    def _seat(self, state: State, n: int, k: int) -> Seat:
        scenario = self.scenarios[state.kernel_id]
        # Candidates of one state get the same draws: their difference is then less noisy.
        seed = derive(self.plan.seed, "simulate", state.conversation_id, state.t, k)
        logged = self.conversations[state.conversation_id]
        return Seat(scenario, Role.AGENT, 10_000 + n * CONTINUATIONS + k, logged.replica, seed)

    def _begun(self, state: State, response: Response) -> tuple[Turn, ...]:
        logged = self.conversations[state.conversation_id]
        before = logged.turns[: action_indices(logged.turns)[state.t - 1]]
        return (*before, Turn(Role.AGENT, response.text))


class SimulatedQ:
    """IterPO with simulation in the place of the fitted Q."""

    def update(self, policy: PolicyRef, batch: RoundBatch, workspace: Any) -> PolicyRef:
        assert isinstance(workspace, FolderWorkspace)
        plan = load_plan(Path(workspace.folder).parents[1] / PLAN)
        env = environments.make(plan.environment.name, **plan.environment.options)
        reward = ValueBySimulation(
            workspace._backbone(policy, None),
            plan,
            {c.id: c for c in batch.conversations},
            {s.kernel_id: s for s in draw_scenarios(env, plan, Split.TRAIN, batch.round)},
        )
        return workspace.improve(policy, batch, reward=reward)


REGISTRY["simulated_q"] = "simulated_q:SimulatedQ"
