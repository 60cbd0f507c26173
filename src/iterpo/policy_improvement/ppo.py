"""Single-turn PPO: advantages by token from a value head, and several clipped updates per batch.

The head is linear in the policy's own hidden states, V(s, a_<j) before each token j of a response.
It is fitted to the reward that the response got, by ridge regression in closed form: there is no
step size to choose. What a candidate is compared with must not know that candidate's own reward, so
the candidates are dealt to folds, and V of a fold is fitted to the other folds and to the batches
before. The head starts anew in every phase.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from iterpo.policy_improvement.base import ImproveConfig
from iterpo.policy_improvement.objectives import Advantages, Scored
from iterpo.policy_improvement.ppo_losses import explained_variance, masked_gae
from iterpo.policy_improvement.ridge import Moments

__all__ = ["Ppo"]

_FOLDS = 4
_HEAD = "value-head.safetensors"


class Ppo:
    """The predecessor paper's operator (its section 3.1, Algorithm 1)."""

    whole_responses = False

    def __init__(self, config: ImproveConfig) -> None:
        self.config = config
        self.past: Moments | None = None

    def advantages(self, batch: Scored) -> Advantages:
        """Advantages (N, T) of a batch; the head learns from it."""
        config, mask = self.config, batch.mask.bool().cpu()
        scored = batch.rewards.isfinite().cpu()
        rewards = torch.where(scored, batch.rewards.double().cpu(), 0.0)
        values = torch.zeros_like(mask, dtype=torch.float64)
        values[mask] = self._values(mask, rewards, scored & batch.own.cpu(), batch.states().cpu())
        lengths = mask.sum(1)
        earned = torch.zeros_like(values)
        earned[torch.arange(len(mask)), (lengths - 1).clamp(min=0)] = rewards
        found, _ = masked_gae(earned, values, mask, 1.0, config.ppo.lam)
        used = mask & scored[:, None]
        known = rewards[scored]
        flat = len(known) < 2 or bool(known.max() - known.min() <= config.tie_tolerance)
        if flat:
            used = torch.zeros_like(used)
        elif config.ppo.whiten:
            inside = found[used]
            found = (found - inside.mean()) / (
                inside.std().clamp(min=config.std_floor) + config.std_epsilon
            )
        place = batch.rewards.device
        return Advantages(
            values=torch.where(used, found, 0.0).float().to(place),
            scored=scored.to(place),
            tied=torch.full((len(mask) // config.group_size,), flat, device=place),
            facts=_facts(rewards[:, None].expand_as(values)[used], values[used]),
        )

    def _values(self, mask: Tensor, rewards: Tensor, known: Tensor, states: Tensor) -> Tensor:
        """V (n,) at each token, from what is not of its own fold; then the batch is learned.

        Args:
            mask: (N, T), true on the n tokens.
            rewards: (N,).
            known: (N,) whether to learn from a candidate.
            states: (n, d).
        """
        options, rows = self.config.ppo, mask.nonzero()[:, 0]
        folds = rows % _FOLDS  # candidates of one state are in unlike ones
        parts = []
        for k in range(_FOLDS):
            pick = known[rows] & (folds == k)
            parts.append(Moments.of(states[pick], rewards[rows[pick]]))
        before = [] if self.past is None else [self.past]
        values = torch.zeros(len(rows), dtype=torch.float64)
        for k in range(_FOLDS):
            rest = [part for j, part in enumerate(parts) if j != k]
            line = _sum([*rest, *before]).solve(options.value_ridge)
            values[folds == k] = line(states[folds == k])
        self.past = _sum([*parts, *(b.times(options.value_memory) for b in before)])
        return values

    def store(self, folder: Path) -> None:
        """Put what the head learned from into a checkpoint."""
        if self.past is not None:
            kept = {"squares": self.past.squares, "products": self.past.products}
            save_file(kept, folder / _HEAD)

    def restore(self, folder: Path) -> None:
        """Take over what ``store`` left."""
        self.past = Moments(**load_file(folder / _HEAD))


def _sum(parts: list[Moments]) -> Moments:
    whole, *others = parts
    for part in others:
        whole = whole + part
    return whole


def _facts(rewards: Tensor, values: Tensor) -> dict[str, float]:
    if not len(rewards):
        return {}
    explained = explained_variance(rewards, values)
    return {"explained_variance": explained} if explained == explained else {}
