"""The verbs of the library: load a policy, collect or read, fit Q, improve.

>>> import iterpo
>>> iterpo.environments.make("ultimatum").name
'ultimatum'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from iterpo.domain import Conversation, PolicyRef, Reward, Sampling, Split
from iterpo.errors import ArtifactError, ConfigError

if TYPE_CHECKING:  # heavy layers are imported where they are used: `import iterpo` stays light
    from iterpo.agents.base import AgentFactory
    from iterpo.environments.base import Environment
    from iterpo.experiments.speakers import Speaker
    from iterpo.policy_evaluation.qfunction import QFunction

__all__ = ["collect", "fit_q", "improve", "load_policy", "read"]


def load_policy(name: str) -> PolicyRef:
    """A policy by name: an embedded default, a local model folder, a hub id, or a policy folder.

    Raises:
        UnknownNameError: if the name stands for none of these.
        ModelError: if the model's files can't be used (no safetensors, code of its own, …).
    """
    from iterpo.models.checkpoints import load_policy as load

    return load(name)


def collect(
    policy: PolicyRef | str | AgentFactory,
    environment: Environment,
    *,
    partner: PolicyRef | str | AgentFactory | None = None,
    scenarios: int = 100,
    per_scenario: int = 4,
    seed: int = 42,
    split: Split = Split.TRAIN,
    sampling: Sampling | None = None,
) -> tuple[Conversation, ...]:
    """Deploy a policy against a partner and log the conversations.

    Args:
        policy: Who plays the agent: a policy, the name of one (or ``oracle``, ``first-counter``,
            ``random-offer``, or a served model as ``URL#MODEL``), or agents of your own.
        environment: From ``iterpo.environments.make``.
        partner: The other side, named likewise; by default the game's scripted partner, the only
            one for which J* is known.
        scenarios: Number of kernels.
        per_scenario: Conversations per kernel.
        seed: Seed of all draws.
        split: Train or held-out kernels.
        sampling: Settings of every model; temperature 1 and no nucleus by default.

    Raises:
        ConfigError: if a number is below 1, or a speaker can't take its side of this game.
        UnknownNameError: if a name stands for nobody.
    """
    from iterpo.collect.batch import collect as collect_batch
    from iterpo.collect.batch import seats
    from iterpo.experiments.speakers import seat

    wrong = [
        f"{name} is {n!r}; accepted: 1 or more"
        for name, n in (("scenarios", scenarios), ("per_scenario", per_scenario))
        if n < 1
    ]
    if wrong:
        raise ConfigError("\n".join(wrong))
    effective = sampling or Sampling()
    seating = seat(
        environment,
        _speaker(policy, effective, "policy"),
        _speaker("scripted" if partner is None else partner, effective, "partner"),
    )
    kernels = environment.scenarios(split, scenarios)
    return collect_batch(
        seating.table,
        seats(kernels, per_scenario, round=seating.round, seed=seed),
        j_star=seating.j_star,
    )


def _speaker(
    given: PolicyRef | str | AgentFactory, sampling: Sampling, argument: str
) -> Speaker | AgentFactory:
    from iterpo.experiments.speakers import Local, read_speaker

    if isinstance(given, PolicyRef):
        return Local(given, sampling)
    if isinstance(given, str):
        return read_speaker(given, sampling)
    if callable(given):
        return given
    raise ConfigError(
        f"{argument} is a {type(given).__name__}; accepted: a policy (iterpo.load_policy), its "
        "name, or a factory that gives every seat an agent"
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
    """Fit Q^pi to a batch: to its Monte-Carlo returns unless told otherwise (Observation 3.5).

    Args:
        policy: The policy that logged the batch; its weights are the frozen backbone.
        batch: Logged conversations.
        gamma: Discount per agent turn.
        options: Further fields of ``policy_evaluation.base.QConfig``. ``judge_fraction`` is 0 here
            unless given: no verdict follows that a judge could speak in.

    Returns:
        A reward ``(states, responses) -> scores``; ``.report`` says how far to trust it.

    Raises:
        BatchError: if the batch can't be learnt from.
        ConfigError: if an option can't be used; ``pool_rounds`` needs a run.
    """
    from iterpo.methods.corrections import explored_ratios, responder
    from iterpo.models.backbone import load
    from iterpo.policy_evaluation.base import QConfig
    from iterpo.policy_evaluation.fit import fit_q as fit
    from iterpo.policy_evaluation.split import log_sha256, set_aside

    config = QConfig(gamma=gamma, **{"judge_fraction": 0.0, **options})
    if config.pool_rounds:
        raise ConfigError("pool_rounds: given for one batch; accepted: 0, or a run of rounds")
    own, _ = set_aside(batch, config)  # a stored Q tells by its settings what it never saw
    backbone = load(policy)
    explored = explored_ratios(lambda: backbone, own, config)
    respond = responder(lambda: backbone, own, config, Sampling())
    result = fit(backbone, own, config, explored=explored, respond=respond)
    return replace(result.q, log_sha256=log_sha256(batch))


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
        operator: Which single-turn method: ``grpo``, ``rloo`` or ``ppo``.
        out: Folder of the new policy; by default a new one in the cache.
        options: Further fields of ``policy_improvement.base.ImproveConfig``.

    Raises:
        ArtifactError: if ``out`` holds something already.
        UnknownNameError: if there is no such operator.
        ConfigError: if an option can't be used.
        BatchError: if the agent never spoke, so that there are no states.
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


def _fresh_folder(policy: PolicyRef) -> Path:
    """A new folder in the cache: a reward is any callable, so work can't be found by content."""
    from iterpo.config import cache_folder

    parent = cache_folder() / "improved"
    parent.mkdir(parents=True, exist_ok=True)
    return Path(mkdtemp(prefix=f"{policy.id}-", dir=parent))
