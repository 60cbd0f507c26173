"""Group advantages: the z-score convention of policy improvement, in one place."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["GroupAdvantages", "group_advantages"]


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """Advantages of N = P * G candidates, G consecutive ones per prompt."""

    values: torch.Tensor
    """(N,) float32; 0 for unscored candidates and in tied groups."""
    scored: torch.Tensor
    """(N,) bool; False where the score is missing or not finite."""
    tied: torch.Tensor
    """(P,) bool; True for a group without spread, or with fewer than two scores."""


def group_advantages(
    rewards: torch.Tensor,
    group_size: int,
    *,
    scale: str = "group",
    std_floor: float = 0.0,
    epsilon: float = 1e-4,
    tie_tolerance: float = 1e-6,
) -> GroupAdvantages:
    """(r - mean) / (max(std, floor) + epsilon) within each group, unscored candidates left out.

    The standard deviation has ddof = 1. A missing score does not move its siblings: their
    advantages are those of the smaller group.

    Args:
        rewards: (N,), NaN where a candidate has no score.
        group_size: G; N is a multiple of it.
        scale: ``group`` divides by the group's deviation, ``batch`` by that of all scores,
            ``none`` by 1.
        std_floor: Floor under the deviation, in reward units.
        epsilon: Added to the deviation.
        tie_tolerance: Largest spread (max - min) of a group that counts as tied.

    >>> scores = torch.tensor([1.0, 0.0, 0.0, 1.0])
    >>> [round(a, 4) for a in group_advantages(scores, 4).values.tolist()]
    [0.8659, -0.8659, -0.8659, 0.8659]
    """
    grouped = rewards.double().view(-1, group_size)  # (P, G)
    scored = grouped.isfinite()
    count = scored.sum(1, keepdim=True)
    mean = grouped.where(scored, 0.0).sum(1, keepdim=True) / count.clamp(min=1)
    centred = (grouped - mean).where(scored, 0.0)
    highest = grouped.where(scored, -torch.inf).amax(1)
    lowest = grouped.where(scored, torch.inf).amin(1)
    tied = (count.squeeze(1) < 2) | (highest - lowest <= tie_tolerance)
    if scale == "none":
        divisor = torch.ones_like(mean)
    elif scale == "batch":
        divisor = grouped[scored].std().clamp(min=std_floor) + epsilon
    else:
        std = (centred.square().sum(1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
        divisor = std.clamp(min=std_floor) + epsilon
    values = (centred / divisor).masked_fill(tied.unsqueeze(1), 0.0)
    return GroupAdvantages(values.flatten().float(), scored.flatten(), tied)
