"""Terms of the loss beside the advantages: means over the tokens of a whole step.

Each is a share of that mean, so that micro-batches add up to it, whatever their sizes.
"""

from __future__ import annotations

import torch

__all__ = ["entropy_term", "kl_term"]


def entropy_term(entropies: torch.Tensor, mask: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Mean entropy in nats per token.

    Args:
        entropies: (B, C).
        mask: (B, C), 1 on the tokens that count.
        total: Number of such tokens in the whole step.
    """
    return (entropies * mask).sum() / total.clamp(min=1)


def kl_term(
    logps: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor, total: torch.Tensor
) -> torch.Tensor:
    """Mean over tokens of r - 1 - log r with r = reference / policy: KL(policy || reference).

    Args:
        logps: (B, C) log-probs of tokens that the policy itself drew.
        reference: (B, C) their log-probs under the reference.
        mask: (B, C), 1 on the tokens that count.
        total: Number of such tokens in the whole step.
    """
    gap = reference - logps
    return ((gap.exp() - gap - 1) * mask).sum() / total.clamp(min=1)
