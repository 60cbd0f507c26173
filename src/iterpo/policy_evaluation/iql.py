"""Implicit Q-learning: twin critics fitted to one-step backups of logged transitions (ArCHer).

For i in {1, 2}, with bars for the target network, tau for the expectile, d for done:

    y_i = r + discount (1 - d) V̄_i(s')        L_Qi = mean (Q_i(s, a) - y_i)^2
    u_i = Q̄_i(s, a) - V_i(s)                  L_Vi = mean |tau - 1[u_i <= 0]| u_i^2

Each twin follows its own target: there is no minimum over the twins here. V nears the best of the
logged actions as tau nears 1, without any action that was not logged being looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from iterpo.domain import derive
from iterpo.errors import TrainingError
from iterpo.policy_evaluation.iql_config import IqlConfig

__all__ = [
    "Backups",
    "Losses",
    "Reader",
    "advantages",
    "backup",
    "expectile_loss",
    "fit",
    "follow",
    "losses",
]

C = TypeVar("C", contravariant=True)
M = TypeVar("M", bound=nn.Module)
Record = Callable[[int, Mapping[str, float]], None]
"""Takes an epoch (from 1) and named values."""


@dataclass(frozen=True, slots=True)
class Backups:
    """What is known of n transitions beside their texts."""

    rewards: Tensor
    """r, (n,) float32."""
    discounts: Tensor
    """Worth of the next state's value, (n,) float32."""
    done: Tensor
    """Whether there is no next state, (n,) bool."""


class Reader(Protocol[C]):
    """Values of n transitions, by their indices; both twins side by side."""

    def values(self, critic: C, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Q(s, a) and V(s) of the rows, (b, 2) each."""
        ...

    def following(self, critic: C, rows: Tensor) -> Tensor:
        """V(s') of the rows, none of which is done: (b, 2)."""
        ...


class Losses(NamedTuple):
    """Losses of both twins, (2,) each; the critic's is the sum of all four."""

    q: Tensor
    """L_Q1 and L_Q2."""
    v: Tensor
    """L_V1 and L_V2."""


def backup(rewards: Tensor, discounts: Tensor, done: Tensor, following: Tensor) -> Tensor:
    """Targets y = r + g V(s'): (n,) rewards, discounts and done, (n, 2) V(s'), to (n, 2)."""
    return rewards[:, None] + (discounts * ~done)[:, None] * following


def expectile_loss(u: Tensor, expectile: float) -> Tensor:
    """|tau - 1[u <= 0]| u^2, element by element, of u in any shape (appendix E.7).

    >>> expectile_loss(torch.tensor([0.2, -0.1]), 0.9)
    tensor([0.0360, 0.0010])
    """
    weight = torch.where(u > 0, expectile, 1.0 - expectile)
    return weight * u.square()


def losses(
    critic: M,
    target: M,
    reader: Reader[M],
    data: Backups,
    rows: Tensor,
    expectile: float,
) -> Losses:
    """Losses on the rows with these indices (b,); gradients go to ``critic`` alone.

    L_Q is (Q - y)^2 with y by ``backup`` from the target's V, L_V the expectile loss of the
    target's Q - V, each twin by itself (appendix E.7).
    """
    q, v = reader.values(critic, rows)
    with torch.no_grad():
        target_q, _ = reader.values(target, rows)
        done = data.done[rows]
        following = torch.zeros_like(q)
        if not done.all():
            following[~done] = reader.following(target, rows[~done])
        y = backup(data.rewards[rows], data.discounts[rows], done, following)
    return Losses((q - y).square().mean(dim=0), expectile_loss(target_q - v, expectile).mean(dim=0))


@torch.no_grad()
def follow(target: nn.Module, critic: nn.Module, share: float) -> None:
    """Move a target network: (1 - share) target + share critic, weight by weight."""
    for old, new in zip(target.parameters(), critic.parameters(), strict=True):
        old.lerp_(new, share)


def fit(
    critic: M,
    target: M,
    reader: Reader[M],
    data: Backups,
    config: IqlConfig,
    record: Record | None = None,
) -> None:
    """Train a critic and its target, in place; equal seeds and rows give equal bytes.

    Args:
        critic: Trained from the weights that it has; in evaluation mode afterwards.
        target: Its target network, of the same shape.
        reader: Values of the transitions.
        data: Their rewards and ends.
        config: How.
        record: Receives after every epoch ``q_loss`` and ``v_loss`` (mean over twins and rows).

    Raises:
        TrainingError: if a loss stops being finite.
    """
    n = len(data.rewards)
    device = next(critic.parameters()).device
    optimizer = torch.optim.Adam(critic.parameters(), lr=config.learning_rate)
    target.eval().requires_grad_(False)
    critic.train()
    with torch.random.fork_rng([device.index or 0] if device.type == "cuda" else []):
        torch.manual_seed(derive(config.seed, "iql") % 2**63)
        for epoch in range(1, config.epochs + 1):
            sums = torch.zeros(2)
            for step in torch.split(torch.randperm(n), config.batch_size * config.accumulation):
                optimizer.zero_grad(set_to_none=True)
                for rows in torch.split(step, config.batch_size):
                    found = losses(critic, target, reader, data, rows, config.expectile)
                    # A step is the mean over all of its rows, however they are read.
                    torch.autograd.backward((found.q + found.v).sum() * (len(rows) / len(step)))
                    means = torch.stack([found.q.detach().mean(), found.v.detach().mean()])
                    sums += means.cpu() * len(rows)
                if not torch.isfinite(sums).all():
                    raise TrainingError(
                        f"fitting the critic diverged in epoch {epoch}; lower its learning rate "
                        f"(now {config.learning_rate})"
                    )
                optimizer.step()
                follow(target, critic, config.target_ema)
            if record is not None:
                q_loss, v_loss = (sums / n).tolist()
                record(epoch, {"q_loss": q_loss, "v_loss": v_loss})
    critic.eval()


@torch.no_grad()
def advantages(critic: M, reader: Reader[M], n: int, batch_size: int) -> Tensor:
    """A = min(Q_1, Q_2) - min(V_1, V_2) of n transitions, (n,) on the CPU.

    Args:
        critic: The online critic, in evaluation mode.
        reader: Values of the transitions.
        n: How many there are.
        batch_size: Transitions in a forward pass.
    """
    out = [torch.empty(0)]
    for rows in torch.split(torch.arange(n), batch_size):
        q, v = reader.values(critic, rows)
        out.append((q.amin(dim=1) - v.amin(dim=1)).float().cpu())
    return torch.cat(out)
