"""The library in five lines: load a policy, collect, fit Q, improve, measure.

>>> import iterpo
>>> iterpo.environments.make("ultimatum").name
'ultimatum'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, cast

from iterpo.domain import Conversation, PolicyRef, Reward, Sampling, Split
from iterpo.errors import ArtifactError

if TYPE_CHECKING:  # heavy layers are imported where they are used: `import iterpo` stays light
    from iterpo.environments.base import Environment
    from iterpo.measure import Measurement
    from iterpo.policy_evaluation.qfunction import QFunction

__all__ = ["collect", "fit_q", "improve", "load_policy", "measure", "read"]


def load_policy(name: str) -> PolicyRef:
    """A policy by name: an embedded default, a local model folder, a hub id, or a policy folder.

    Raises:
        UnknownNameError: if the name stands for none of these.
        ModelError: if the model's files can't be used (no safetensors, code of its own, …).
    """
    from iterpo.models.checkpoints import load_policy as load

    return load(name)


def collect(
    policy: PolicyRef,
    environment: Environment,
    *,
    scenarios: int = 100,
    per_scenario: int = 4,
    seed: int = 42,
    split: Split = Split.TRAIN,
    sampling: Sampling | None = None,
) -> tuple[Conversation, ...]:
    """Deploy a policy against the game's scripted partner and log the conversations.

    Args:
        policy: Who plays the agent.
        environment: From ``iterpo.environments.make``.
        scenarios: Number of kernels.
        per_scenario: Conversations per kernel.
        seed: Seed of all draws.
        split: Train or held-out kernels.
        sampling: Settings of the policy; temperature 1 and no nucleus by default.
    """
    from iterpo.agents.local import LocalPolicy
    from iterpo.agents.scripted import Bargaining, ScriptedPartner
    from iterpo.collect.batch import collect as collect_batch
    from iterpo.collect.batch import seats
    from iterpo.collect.play import Table
    from iterpo.models.backbone import load

    agent = LocalPolicy(load(policy), sampling or Sampling())
    partner = ScriptedPartner(cast(Bargaining, environment))
    return collect_batch(
        Table(environment, agent, partner, policy.id),
        seats(environment.scenarios(split, scenarios), per_scenario, round=policy.round, seed=seed),
        j_star=lambda scenario: partner.j_star(scenario, 0.9),
    )


def read(path: str | Path) -> tuple[Conversation, ...]:
    """Read logged conversations from a file or a folder that iterpo wrote.

    Raises:
        MissingDataError: if nothing is there.
        DataError: if a line is not a conversation; the message has its number.
    """
    from iterpo.store import read_conversations

    return read_conversations(path)


def fit_q(
    policy: PolicyRef, batch: Sequence[Conversation], gamma: float = 0.9, **options: Any
) -> QFunction:
    """Fit Q^pi to the Monte-Carlo returns of a batch (Observation 3.5).

    Args:
        policy: The policy that logged the batch; its weights are the frozen backbone.
        batch: Logged conversations.
        gamma: Discount per agent turn.
        options: Further fields of ``policy_evaluation.base.QConfig``.

    Returns:
        A reward ``(states, responses) -> scores``; ``.report`` says how far to trust it.

    Raises:
        BatchError: if the batch can't be learnt from.
    """
    from iterpo.models.backbone import load
    from iterpo.policy_evaluation.base import QConfig
    from iterpo.policy_evaluation.monte_carlo import fit_q as fit

    result = fit(load(policy), batch, QConfig(gamma=gamma, **options))
    return result.q


def improve(
    policy: PolicyRef,
    batch: Sequence[Conversation],
    reward: Reward,
    operator: str = "grpo",
    out: str | Path | None = None,
    **options: Any,
) -> PolicyRef:
    """Single-turn RL on the logged states with any reward (Observation 3.1).

    Args:
        policy: The policy to start from, and the reference of the KL term.
        batch: Logged conversations; only their states are used.
        reward: Any callable ``(states, responses) -> scores``; None leaves a response out.
        operator: Which single-turn method; ``grpo``.
        out: Folder of the new policy; by default a new one in the cache.
        options: Further fields of ``policy_improvement.base.ImproveConfig``.
    """
    from iterpo.methods.base import RoundBatch
    from iterpo.methods.workspace import FolderWorkspace, Settings
    from iterpo.policy_improvement.base import ImproveConfig

    config = replace(ImproveConfig(operator=operator), **options)
    conversations = tuple(batch)
    folder = Path(out) if out is not None else _fresh_folder(policy)
    if folder.exists() and any(folder.iterdir()):
        raise ArtifactError(f"{folder} is not empty; name a new folder for the policy.")
    workspace = FolderWorkspace(folder, Settings(improve=config))
    return workspace.improve(policy, RoundBatch(policy.round, conversations, policy), reward=reward)


def measure(batch: Sequence[Conversation], gamma: float = 0.9) -> Measurement:
    """J in both units, agreement, reward, turns, J* and regret, each with a clustered error."""
    from iterpo.measure import measure as measure_batch

    return measure_batch(batch, gamma)


def _fresh_folder(policy: PolicyRef) -> Path:
    """A new folder in the cache: a reward is any callable, so work can't be found by content."""
    from iterpo.config import cache_folder

    parent = cache_folder() / "improved"
    parent.mkdir(parents=True, exist_ok=True)
    return Path(mkdtemp(prefix=f"{policy.id}-", dir=parent))
