"""Coverage: which responses lie farther from the log than logged ones lie from each other.

Q is fitted where the log has data; what lies outside it is a guess. This says how much of what a
policy now says does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["QUANTILE", "nearest_logged", "unseen"]

QUANTILE = 0.95
"""Share of the logged responses that count as ordinary: 5% of them are "unseen" themselves."""


def nearest_logged(
    features: Tensor, groups: Sequence[str], logged: Tensor, logged_groups: Sequence[str]
) -> Tensor:
    """Distance of each row to the nearest logged row of another conversation: (n, d) -> (n,).

    Features are brought to the mean and spread of the logged rows first. Rows of the same
    conversation are left out on both sides: their states are nearly the same, so that whatever is
    said would seem familiar. Infinity where no other conversation is logged.
    """
    spread = logged.std(dim=0, correction=0)
    scale = torch.where(spread > 1e-6, spread, torch.ones_like(spread))
    mean = logged.mean(dim=0)
    # The plain formula: through matrix products, equal rows would come out apart by rounding.
    gaps = torch.cdist(
        (features - mean) / scale,
        (logged - mean) / scale,
        compute_mode="donot_use_mm_for_euclid_dist",
    )  # (n, logged)
    names = {g: i for i, g in enumerate(dict.fromkeys((*groups, *logged_groups)))}
    own = torch.tensor([names[g] for g in groups])
    theirs = torch.tensor([names[g] for g in logged_groups])
    gaps = gaps.masked_fill(own[:, None] == theirs[None, :], torch.inf)
    return gaps.amin(dim=1)


def unseen(
    features: Tensor, groups: Sequence[str], logged: Tensor, logged_groups: Sequence[str]
) -> Tensor:
    """Which candidates (n,) lie beyond the 95% quantile of the logged rows' own distances.

    Args:
        features: (n, d) of candidates at logged states, finite.
        groups: Conversation that each candidate's state comes from.
        logged: (m, d) of the logged responses, finite.
        logged_groups: Conversation of each.
    """
    usual = nearest_logged(logged, logged_groups, logged, logged_groups)
    if not bool(torch.isfinite(usual).all()):  # a single conversation has nothing to compare with
        return torch.zeros(len(features), dtype=torch.bool)
    limit = torch.quantile(usual, QUANTILE)
    return nearest_logged(features, groups, logged, logged_groups) > limit
