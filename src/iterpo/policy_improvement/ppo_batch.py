"""PpoBatch: what an update by PPO knows of its batch before the first step, and never changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from iterpo.domain import derive
from iterpo.models.backbone import Backbone, frozen
from iterpo.policy_improvement.base import Training
from iterpo.policy_improvement.episodes import Episode
from iterpo.policy_improvement.logged import LoggedConfig, schedule
from iterpo.policy_improvement.ppo_config import CreditUnit, PpoConfig
from iterpo.policy_improvement.ppo_losses import explained_variance, masked_gae, whitened
from iterpo.policy_improvement.readings import read
from iterpo.policy_improvement.value_head import ValueHead, fit_head

__all__ = ["Old", "PpoBatch", "advantages", "at_positions", "positions", "prepare"]

_OLD = "policy.safetensors"


@dataclass(frozen=True, slots=True, eq=False)
class Old:
    """One episode under the policy that collected it; positions are its actions or its tokens."""

    logps: Tensor
    """(n,) log-probs of its tokens."""
    values: Tensor
    """(p,) V at its positions."""
    advantages: Tensor
    """(p,)."""
    returns: Tensor
    """(p,) what V is to learn."""


@dataclass(frozen=True, slots=True, eq=False)
class PpoBatch:
    """The batch of an update."""

    episodes: tuple[Episode, ...]
    """All of them."""
    old: tuple[Old, ...]
    """One for each."""

    @classmethod
    def load(cls, folder: Path, episodes: Sequence[Episode], config: PpoConfig) -> PpoBatch:
        """With what ``prepare`` left in a folder."""
        stored = load_file(folder / _OLD)
        logps = torch.split(stored["logps"], [e.tokens for e in episodes])
        places = [positions(e, config.unit) for e in episodes]
        values = torch.split(stored["values"], places)
        found = advantages(episodes, values, config)
        return cls(
            tuple(episodes),
            tuple(Old(*parts) for parts in zip(logps, values, *found, strict=True)),
        )


def prepare(
    training: Training,
    episodes: Sequence[Episode],
    config: PpoConfig,
    folder: Path,
    before: Path | None,
) -> Mapping[str, Any]:
    """Read the batch with the policy that collected it, and fit the value head to it.

    Args:
        training: Its backbone is the policy; nothing is trained on it yet.
        episodes: The batch.
        config: What to do.
        folder: Gets the head, and the log-probs and values that the update starts from.
        before: The same folder of the last update; used if ``config.warm_start``.

    Returns:
        Facts: numbers of conversations and positions, and the head's explained variance (None
        where the returns do not vary).
    """
    logps, states = _recorded(training.backbone, episodes, config)
    zero = [torch.zeros(len(s)) for s in states]
    _, returns = _gae(episodes, zero, config, lam=1.0)  # on Monte-Carlo returns
    if config.warm_start and before is not None:
        head = ValueHead.load(before)
    else:
        head = ValueHead(states[0].shape[1])
    device = training.backbone.device
    head.to(device)
    if config.value_passes:
        plan = LoggedConfig(
            epochs=config.value_passes,
            batch_size=config.batch_size,
            gradient_accumulation=config.gradient_accumulation,
        )
        order = schedule(len(episodes), plan, derive(training.seed, "mt_ppo", "value"))
        fit_head(head, states, returns, order, config.value_learning_rate or config.learning_rate)
    with torch.no_grad():
        values = [head(s.to(device)).cpu() for s in states]
    head.save(folder)
    save_file({"logps": torch.cat(logps), "values": torch.cat(values)}, folder / _OLD)
    explained = explained_variance(torch.cat(returns), torch.cat(values))
    return {
        "conversations": len(episodes),
        "positions": sum(map(len, values)),
        "explained_variance": explained if explained == explained else None,
    }


def positions(episode: Episode, unit: CreditUnit) -> int:
    """How many positions an episode has."""
    return len(episode.actions) if unit == "turn" else episode.tokens


def at_positions(tokens: Tensor, episodes: Sequence[Episode], unit: CreditUnit) -> Tensor:
    """Of something said at each token (n, …), what is at the positions: V is read before acting."""
    if unit == "token":
        return tokens
    lengths = torch.tensor([a.length for e in episodes for a in e.actions])
    return tokens[(lengths.cumsum(0) - lengths).to(tokens.device)]


def advantages(
    episodes: Sequence[Episode], values: Sequence[Tensor], config: PpoConfig
) -> tuple[list[Tensor], list[Tensor]]:
    """Advantages, whitened if asked, and returns at the positions of each episode."""
    found, returns = _gae(episodes, values, config, config.lam)
    if config.whiten:
        found = list(torch.split(whitened(torch.cat(found)), [len(f) for f in found]))
    return found, returns


def _gae(
    episodes: Sequence[Episode], values: Sequence[Tensor], config: PpoConfig, lam: float
) -> tuple[list[Tensor], list[Tensor]]:
    rewards, discounts = [], []
    for episode in episodes:
        earned, ahead = [], []
        for action in episode.actions:
            inside = 0 if config.unit == "turn" else action.length - 1
            earned += [0.0] * inside + [action.reward]
            ahead += [1.0] * inside + [action.discount]
        rewards.append(torch.tensor(earned))
        discounts.append(torch.tensor(ahead))
    mask = pad_sequence([torch.ones(len(v), dtype=torch.bool) for v in values], batch_first=True)
    padded = [pad_sequence(list(x), batch_first=True) for x in (rewards, values, discounts)]
    found = masked_gae(padded[0], padded[1], mask, padded[2], lam)
    own = [[x[: len(v)] for x, v in zip(rows, values, strict=True)] for rows in found]
    return own[0], own[1]


@torch.no_grad()
def _recorded(
    backbone: Backbone, episodes: Sequence[Episode], config: PpoConfig
) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probs of the tokens, and hidden states at the positions, of each episode, on the CPU."""
    logps: list[Tensor] = []
    states: list[Tensor] = []

    def autocast() -> AbstractContextManager[Any]:
        whole = backbone.dtype == torch.float32
        return nullcontext() if whole else torch.autocast(backbone.device.type, backbone.dtype)

    for start in range(0, len(episodes), config.batch_size):
        some = episodes[start : start + config.batch_size]
        with frozen(backbone):
            found = read(backbone.model, some, autocast)
        valued = at_positions(found.states, some, config.unit)
        logps += torch.split(found.logps.cpu(), [e.tokens for e in some])
        states += torch.split(valued.cpu(), [positions(e, config.unit) for e in some])
    return logps, states
