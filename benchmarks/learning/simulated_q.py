"""Yardstick for Q: every candidate is valued by playing on with the scripted partner.

This needs the simulator that IterPO does without, so it is no method of the product: it shows how
far the same improvement step comes when Q is exact but for the noise of its continuations.
Importing the module registers the method `simulated_q`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from continuations import returns_behind, table_of

from iterpo import environments
from iterpo.domain import (
    Conversation,
    PolicyRef,
    Response,
    Split,
    State,
)
from iterpo.experiments.kernels import draw_scenarios
from iterpo.experiments.ledger import PLAN
from iterpo.experiments.plan import Plan, load_plan
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
        places = [
            (self.scenarios[s.kernel_id], self.conversations[s.conversation_id], s.t)
            for s in states
        ]
        with frozen(self.backbone):
            returns = returns_behind(
                table_of(self.plan, self.backbone),
                self.plan,
                places,
                [r.text for r in responses],
                CONTINUATIONS,
            )
        return [sum(found) / len(found) if found else float("nan") for found in returns]


class SimulatedQ:
    """IterPO with simulation in the place of the fitted Q."""

    def update(self, policy: PolicyRef, batch: RoundBatch, workspace: Any) -> PolicyRef:
        assert isinstance(workspace, FolderWorkspace)
        plan = load_plan(Path(workspace.folder).parents[1] / PLAN)
        env = environments.make(plan.environment.name, **plan.environment.options)
        reward = ValueBySimulation(
            workspace.backbone(policy, None),
            plan,
            {c.id: c for c in batch.conversations},
            {s.kernel_id: s for s in draw_scenarios(env, plan, Split.TRAIN, batch.round)},
        )
        return workspace.improve(policy, batch, reward=reward)


REGISTRY["simulated_q"] = "simulated_q:SimulatedQ"
