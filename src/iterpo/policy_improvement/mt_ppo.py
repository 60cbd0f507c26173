"""Multi-turn PPO: clipped policy gradients on whole logged conversations, with a value head.

Nothing is drawn. First the policy that collected the batch reads it once, and a value head is
fitted to what came of each state; that is kept. Then the policy and the head are trained together
on advantages that no longer change. See docs/decisions/0028.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from iterpo.domain import Conversation, DiscountUnit, derive
from iterpo.errors import BatchError, ConfigError
from iterpo.models.backbone import Backbone, attach_lora
from iterpo.models.chat import check_ids
from iterpo.policy_improvement.base import ImproveResult, Training
from iterpo.policy_improvement.episodes import Episode, episodes, fingerprint
from iterpo.policy_improvement.logged import on_policy, schedule
from iterpo.policy_improvement.ppo_batch import PpoBatch, prepare
from iterpo.policy_improvement.ppo_config import PpoConfig
from iterpo.policy_improvement.ppo_trainer import PpoJob, run
from iterpo.policy_improvement.value_head import ValueHead

__all__ = ["Stage", "train"]

Stage = Callable[[str, Callable[[Path, Path | None], Mapping[str, Any]]], Path]
"""Fills a folder once, with the last update's at hand, and finds it again."""


def train(
    training: Training,
    conversations: Sequence[Conversation],
    config: PpoConfig,
    stage: Stage,
    *,
    gamma: float,
    unit: DiscountUnit = "agent_turn",
) -> ImproveResult:
    """Train a policy on conversations that it led.

    Equal inputs give equal adapter bytes on a CPU, also across an interruption.

    Args:
        training: The policy and where to work.
        conversations: The batch.
        config: What to do.
        stage: Keeps the value head, with the log-probs and values that the update starts from.
        gamma: Discount.
        unit: What one power of it stands for.

    Raises:
        BatchError: if nothing can be learned from, or explored conversations are refused.
        ConfigError: if the adapter has dropout.
        ContextOverflowError: if conversations are too long and may not be shortened.
        ResumeError: if the working folder holds a checkpoint of other inputs.
        TrainingError: if fewer steps were done than planned.
    """
    if training.lora.dropout != 0:
        raise ConfigError(
            f"lora.dropout is {training.lora.dropout!r}; mt_ppo needs 0 (improve.lora.dropout in a "
            "plan), since dropout makes the ratio of an unchanged policy differ from 1"
        )
    backbone, seed = training.backbone, derive(training.seed, "mt_ppo")
    found, shortened = _episodes(backbone, conversations, config, gamma, unit)
    prepared = stage("value", lambda new, old: prepare(training, found, config, new, old))
    facts = {
        "policy": backbone.policy.id,
        "lora": asdict(training.lora),
        "seed": training.seed,
        "config": asdict(config),
        "episodes": fingerprint(found),
    }
    job = PpoJob(
        backbone=backbone,
        model=attach_lora(backbone, training.lora, derive(seed, "lora")),
        head=ValueHead.load(prepared).to(backbone.device),
        batch=PpoBatch.load(prepared, found, config),
        config=config,
        schedule=schedule(len(found), config.logged, derive(seed, "order")),
        seed=derive(seed, "trainer") % 2**31,
        training=training,
        inputs_sha256=hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest(),
    )
    left_out = len(conversations) - len(found)
    return run(job, {"left_out": left_out, "shortened_prompts": shortened})


def _episodes(
    backbone: Backbone,
    conversations: Sequence[Conversation],
    config: PpoConfig,
    gamma: float,
    unit: DiscountUnit,
) -> tuple[tuple[Episode, ...], int]:
    """What can be learned from, and how many states were shortened for it."""
    limit = min(config.max_length or backbone.context_length, backbone.context_length)
    found, shortened = episodes(
        on_policy(conversations, config.off_policy),
        backbone.chat,
        limit,
        gamma=gamma,
        unit=unit,
        drop_old_turns=config.drop_old_turns,
    )
    if not found:
        raise BatchError(
            f"none of the {len(conversations)} conversations has a reward and an agent action of "
            "the policy's own, so there is nothing to learn from. Collect conversations in which "
            "the agent speaks, or check the filter that made the batch."
        )
    check_ids((ids for e in found for ids in e.passes), backbone.vocabulary)
    return found, shortened
