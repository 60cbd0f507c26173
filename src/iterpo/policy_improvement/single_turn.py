"""Single-turn RL on any reward: draw candidates at every state, score them, train on the scores.

That much is the same for every operator; what differs is the operator's ``Objective``. Observation
3.1 of the paper: a policy that raises E[Q(s, a)] at every logged state is a better policy in the
conversation. The batch is stated in prompts; everything that TRL wants to be told beside is
derived from it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

from iterpo.domain import Reward, State, derive
from iterpo.errors import BatchError, ConfigError, UnknownNameError
from iterpo.models.chat import check_ids
from iterpo.policy_improvement.base import (
    OPERATORS,
    ImproveConfig,
    ImproveResult,
    Progress,
    Record,
)
from iterpo.policy_improvement.job import Job
from iterpo.policy_improvement.prompts import Prompts, fit_prompts

if TYPE_CHECKING:
    from iterpo.models.backbone import Backbone
    from iterpo.policy_improvement.objectives import Objective

__all__ = ["check_grpo_fields", "improve", "plan_steps", "state_names", "visiting_order"]


def check_grpo_fields(config: ImproveConfig) -> None:
    """Check what ``config.grpo`` passes on to TRL's trainer; loads TRL.

    Raises:
        ConfigError: with every field that is unknown, decided by an option of ours, or refused.
    """
    from iterpo.policy_improvement._trl import check_fields

    check_fields(config)


def plan_steps(config: ImproveConfig, n_states: int) -> int:
    """Optimizer steps that ``config`` asks for with so many states."""
    if config.steps is not None:
        return config.steps
    per_step = min(config.prompts_per_step, n_states)
    batches = -(-config.epochs * n_states // per_step)
    return batches * config.updates_per_batch


def visiting_order(n_states: int, per_step: int, batches: int, seed: int) -> list[list[int]]:
    """Which states each batch visits: passes in shuffled order, no state twice in one batch.

    A batch at the end of a pass is filled up from the next pass, so every batch is full and no
    state is left out.

    >>> order = visiting_order(5, 2, 5, seed=0)
    >>> sorted(i for batch in order[:3] for i in batch)[:3], {len(set(b)) for b in order}
    ([0, 1, 2], {2})
    """
    per_step = min(per_step, n_states)
    waiting: list[int] = []
    passes = 0
    out = []
    for _ in range(batches):
        batch: list[int] = []
        while len(batch) < per_step:
            fresh = next((i for i in waiting if i not in batch), None)
            if fresh is None:
                refill = list(range(n_states))
                random.Random(derive(seed, "improve", "order", passes)).shuffle(refill)
                waiting += refill
                passes += 1
                continue
            waiting.remove(fresh)
            batch.append(fresh)
        out.append(batch)
    return out


def state_names(states: Sequence[State]) -> list[str]:
    """A name for each state, no two alike, so that no two states draw the same candidates.

    Within one log, conversation and t are enough; where logs with equal ids were joined, the
    second state of a name is called ``#2``, and so on.
    """
    seen: Counter[str] = Counter()
    names = []
    for state in states:
        name = f"{state.conversation_id}:{state.t}"
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names


def improve(
    backbone: Backbone,
    states: Sequence[State],
    reward: Reward,
    config: ImproveConfig,
    *,
    workdir: Path,
    record: Record | None = None,
    progress: Progress | None = None,
) -> ImproveResult:
    """Improve a policy by the operator that ``config`` names (Observation 3.1).

    All is checked before the first draw. Equal inputs give equal bytes on a CPU, also resumed.

    Args:
        backbone: The policy that collected the batch; its weights are trained in place.
        states: Logged states to draw candidate responses at.
        reward: Scores candidates; None or NaN leaves one out.
        config: How.
        workdir: Folder for checkpoints; a restart with equal inputs goes on from the latest.
        record: Receives the metrics of every step.
        progress: Receives how far the work is.

    Raises:
        UnknownNameError: if no such operator is registered.
        ConfigError: if the settings contradict themselves; lists every mistake.
        BatchError: if there are no states.
        ContextOverflowError: if prompts don't fit the context and may not be shortened.
        ResumeError: if ``workdir`` holds a checkpoint of other inputs.
        TrainingError: if training did not do what was planned.
    """
    _check(config, states)
    prompts = fit_prompts(
        backbone.chat,
        states,
        backbone.context_length - config.sampling.max_new_tokens,
        drop_old_turns=config.drop_old_turns,
    )
    from iterpo.models.backbone import attach_lora
    from iterpo.policy_improvement._trl import train

    check_ids(prompts.ids, backbone.vocabulary)
    steps = plan_steps(config, len(states))
    batches = -(-steps // config.updates_per_batch)
    job = Job(
        backbone=backbone,
        model=attach_lora(backbone, config.lora, derive(config.seed, "improve", "lora")),
        prompts=prompts,
        reward=reward,
        objective=_objective(config),
        config=config,
        names=state_names(states),
        order=visiting_order(len(states), config.prompts_per_step, batches, config.seed),
        steps=steps,
        workdir=workdir,
        inputs_sha256=_fingerprint(backbone, prompts, reward, config),
        record=record,
        progress=progress,
    )
    return train(job)


def _check(config: ImproveConfig, states: Sequence[State]) -> None:
    if config.operator not in OPERATORS:
        raise UnknownNameError(
            f"there is no improvement operator {config.operator!r}; "
            f"choose one of {', '.join(OPERATORS)}"
        )
    if mistakes := config.mistakes():
        raise ConfigError("the improvement settings can't be used:\n  " + "\n  ".join(mistakes))
    check_grpo_fields(config)
    if not states:
        raise BatchError(
            "there are no states to improve at: the batch holds no agent action. Collect "
            "conversations in which the agent speaks, or check the filter that made the batch."
        )


def _objective(config: ImproveConfig) -> Objective:
    module, _, name = OPERATORS[config.operator].partition(":")
    return cast("Objective", getattr(importlib.import_module(module), name)(config))


def _fingerprint(
    backbone: Backbone, prompts: Prompts, reward: Reward, config: ImproveConfig
) -> str:
    settings = asdict(config)
    for free in ("checkpoint_every", "report_to"):  # these change no result
        del settings[free]
    if config.operator != "ppo":  # a checkpoint is what it was before there was this option
        del settings["ppo"]
    facts = {
        "policy": backbone.policy.id,
        "reward": str(getattr(reward, "id", "")),  # any callable will do; a fitted Q has an id
        "config": settings,
        "states": [(s.conversation_id, s.t) for s in prompts.states],
        "prompts": prompts.ids,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
