"""Group advantages: a group's mean and deviation, by one convention in one place."""

from __future__ import annotations

from dataclasses import replace

import torch

from iterpo.policy_improvement.objectives import Advantages

__all__ = ["group_advantages", "leave_one_out"]


def group_advantages(
    rewards: torch.Tensor,
    group_size: int,
    *,
    scale: str = "group",
    std_floor: float = 0.0,
    epsilon: float = 1e-4,
    tie_tolerance: float = 1e-6,
) -> Advantages:
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
    return Advantages(values.flatten().float(), scored.flatten(), tied)


def leave_one_out(
    rewards: torch.Tensor, group_size: int, *, tie_tolerance: float = 1e-6
) -> Advantages:
    """R less the mean of the *other* scores of its group: (r - mean) n / (n - 1) with n scores.

    No score is part of its own baseline, so the policy gradient is exactly unbiased, where the
    group's own mean shrinks it by 1 - 1 / n. Arguments as for ``group_advantages``.

    >>> leave_one_out(torch.tensor([1.0, 0.0, 0.0, 1.0]), 4).values
    tensor([ 0.6667, -0.6667, -0.6667,  0.6667])
    """
    found = group_advantages(rewards, group_size, scale="none", tie_tolerance=tie_tolerance)
    count = found.scored.view(-1, group_size).sum(1, keepdim=True)  # (P, 1)
    factor = (count / (count - 1).clamp(min=1)).expand(-1, group_size).flatten()
    return replace(found, values=found.values * factor)
