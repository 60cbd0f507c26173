"""Actor and critic from logs: implicit Q-learning on a replay buffer, then weighted imitation.

What ArCHer and ArCHer-LC have in common (IterPO paper, appendix E.7). The critic of a round goes
on from that of the round before; the actor starts from the deployed policy. Both learn from the
same sample of the buffer. Conversations that are set aside for the judge stay out of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from iterpo.artifacts import open_sealed, write_atomic
from iterpo.domain import Conversation, Ending, PolicyRef, derive
from iterpo.domain.rules import Rule, within
from iterpo.errors import BatchError
from iterpo.methods.base import RoundBatch, Workspace
from iterpo.policy_evaluation.iql_config import IqlConfig
from iterpo.policy_evaluation.replay import replay
from iterpo.policy_evaluation.split import unrelated
from iterpo.policy_evaluation.transitions import Transition
from iterpo.policy_improvement.logged import Example, LoggedConfig, learner
from iterpo.policy_improvement.weights import advantage_weights
from iterpo.store import METRICS, MetricsTable

if TYPE_CHECKING:
    from iterpo.policy_evaluation.critics import Prepared

__all__ = ["OPTION_RULES", "ActorCritic", "Explored", "actor_critic"]

Explored = Literal["critic", "both", "refuse"]
"""Who learns from turns that were explored: the critic alone (one step of its backups holds for
any action), the actor too (which then imitates them), or nobody (they are an error)."""

_POSITIVE: Rule = within("(0, inf)")
_COUNT: Rule = within("[1, inf)")

OPTION_RULES: dict[str, Rule] = {
    "critic_learning_rate": _POSITIVE,
    "critic_epochs": _COUNT,
    "critic_batch_size": _COUNT,
    "critic_accumulation": _COUNT,
    "expectile": within("(0, 1)"),
    "target_ema": within("(0, 1]"),
    "capacity": _COUNT,
    "beta": within("[0, inf)", zero="plain imitation"),
    "weight_clip": within("(0, inf)", null="none"),
    "learning_rate": _POSITIVE,
    "epochs": _COUNT,
    "steps": within("[1, inf)", null="by epochs"),
    "batch_size": _COUNT,
    "gradient_accumulation": _COUNT,
}
"""What the options that both methods have must be."""

_ADVANTAGES = "advantages.json"
Prepare = Callable[[Sequence[Transition]], "Prepared[Any]"]
"""A fresh critic and its reader for the transitions that it can read."""


@dataclass(frozen=True, slots=True)
class ActorCritic:
    """Settings of one update."""

    critic: IqlConfig
    """How the critic is fitted."""
    actor: LoggedConfig
    """How the actor goes through the sample."""
    beta: float
    """Inverse temperature: a turn is imitated with weight exp(beta A)."""
    weight_clip: float | None
    """Largest weight."""
    normalise: bool
    """Whether the weights are brought to mean 1."""
    capacity: int
    """Transitions in the replay buffer."""
    off_policy: Explored
    """What explored turns are good for."""

    @classmethod
    def of(cls, o: Any) -> ActorCritic:
        """From the options that both methods have."""
        critic = IqlConfig(
            o.critic_learning_rate,
            o.critic_batch_size,
            o.critic_accumulation,
            o.critic_epochs,
            o.expectile,
            o.target_ema,
        )
        return cls(
            critic,
            LoggedConfig.of(o),
            o.beta,
            o.weight_clip,
            o.normalise,
            o.capacity,
            o.off_policy,
        )


def actor_critic(
    policy: PolicyRef,
    batch: RoundBatch,
    workspace: Workspace,
    prepare: Prepare,
    settings: ActorCritic,
) -> PolicyRef:
    """One round: fit the critic to the sample, then imitate the sample by advantage.

    Raises:
        BatchError: if nothing can be learned from the logs, or they hold explored turns that may
            not be used.
        TrainingError: if the critic diverges.
    """
    q = workspace.q
    usable = _usable(batch, workspace, settings.off_policy)
    seed = derive(q.seed, "actor-critic")
    rows = replay(usable, q.gamma, q.discount_unit, capacity=settings.capacity, seed=seed)

    def build(folder: Path, before: Path | None) -> Mapping[str, Any]:
        table = MetricsTable(folder / METRICS, round=batch.round, phase="critic")
        config = replace(settings.critic, seed=seed)
        return _fit_critic(folder, before, prepare(rows), config, table)

    stage = workspace.stage("critic", build)
    cut = open_sealed(stage)["facts"].get("texts_at_limit", 0)
    if cut:
        workspace.note(
            f"{cut} observations or actions reach the limit of the critic's encoder, which does "
            "not read how longer ones begin; name an encoder that reads more, or raise max_tokens"
        )
    found = _advantages(stage)
    imitated = [
        r for r in rows if _name(r) in found and (settings.off_policy == "both" or not r.explored)
    ]
    if not imitated:
        raise BatchError(
            "all sampled turns were explored, so there is nothing for the actor to imitate; "
            "explore a smaller share, or set off_policy to both"
        )
    agreed = {c.id for c in usable if c.outcome.ending is Ending.AGREED}
    factors = advantage_weights(
        [found[_name(r)] for r in imitated],
        settings.beta,
        weight_clip=settings.weight_clip,
        normalise=settings.normalise,
    )
    examples = [
        Example(r.state, r.response, r.state.conversation_id in agreed, factor)
        for r, factor in zip(imitated, factors, strict=True)
    ]
    return workspace.learn(policy, batch, learner("awr", examples, settings.actor))


def _usable(
    batch: RoundBatch, workspace: Workspace, off_policy: Explored
) -> tuple[Conversation, ...]:
    """Scored conversations of all rounds that tell nothing of those kept for the judge."""
    own = workspace.own(batch)
    mine = {id(c) for c in own}
    aside = [c for c in batch.conversations if id(c) not in mine]
    earlier = [c for log in batch.earlier for c in log]
    apart = unrelated(earlier, aside, workspace.q.split_by)
    every = [*(c for c, kept in zip(earlier, apart, strict=True) if kept), *own]
    scored = tuple(c for c in every if c.outcome.ending.scored)
    explored = [c for c in scored if c.explored]
    if explored and off_policy == "refuse":
        raise BatchError(
            f"{len(explored)} of {len(scored)} conversations were explored off-policy (first: "
            f"{explored[0].id!r}). Set off_policy (method.options.off_policy in a plan) to critic "
            "to learn values from them and imitate only turns that a policy chose by itself, or to "
            "both to imitate them too."
        )
    return scored


def _fit_critic(
    folder: Path,
    before: Path | None,
    prepared: Prepared[Any],
    config: IqlConfig,
    table: MetricsTable,
) -> dict[str, Any]:
    """Fit, and store critic, target and the advantage of every transition in the sample."""
    from iterpo.policy_evaluation.critics import backups, load_critics, save_critics
    from iterpo.policy_evaluation.iql import advantages, fit

    rows, critic, target = prepared.rows, prepared.critic, prepared.target
    if not rows:
        raise BatchError(
            "none of the sampled turns can be read by the critic: responses without tokens, or "
            "hidden states that overflow; try dtype bfloat16 or float32"
        )
    if before is not None:
        load_critics(before, critic, target)
    fit(critic, target, prepared.reader, backups(rows), config, table.record)
    found = advantages(critic, prepared.reader, len(rows), config.batch_size).tolist()
    told = [[*_name(row), value] for row, value in zip(rows, found, strict=True)]
    write_atomic(folder / _ADVANTAGES, json.dumps(told) + "\n")
    save_critics(folder, critic, target)
    return {
        "transitions": len(rows),
        "explored": sum(row.explored for row in rows),
        "warm_start": before is not None,
        **prepared.facts,
    }


def _advantages(folder: Path) -> dict[tuple[str, int], float]:
    told = json.loads((folder / _ADVANTAGES).read_text(encoding="utf-8"))
    return {(name, t): value for name, t, value in told}


def _name(row: Transition) -> tuple[str, int]:
    return row.state.conversation_id, row.state.t
