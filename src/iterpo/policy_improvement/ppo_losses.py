"""PPO in formulas: generalised advantages, the clipped surrogate, the clipped value loss.

Nothing here knows a model or a conversation, so that multi-turn PPO and PPO on a reward share it.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "approximate_kl",
    "clipped",
    "clipped_surrogate",
    "clipped_value_loss",
    "explained_variance",
    "masked_gae",
    "whitened",
]


def masked_gae(
    rewards: Tensor, values: Tensor, mask: Tensor, discounts: Tensor | float, lam: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates, and the returns A + V that a value function is to learn.

    delta_j = r_j + g_j V_j' - V_j and A_j = delta_j + g_j lam A_j', where j' is the next position
    of the policy's own: what the other party says lies between the two and is passed over, which
    is the recursion on the sequence without it. Behind the last position all is 0.

    Args:
        rewards: (…, n).
        values: (…, n); at positions that are not the policy's own anything, NaN too.
        mask: (…, n), true where the policy acted.
        discounts: (…, n) or one number: g_j, from a position to the next.
        lam: 1 gives the returns less V, 0 the one-step errors.

    Returns:
        Both (…, n), 0 outside the mask.
    """
    own = mask.bool()
    weights = torch.as_tensor(discounts, dtype=values.dtype).expand_as(values)
    advantages = torch.zeros_like(values)
    value_ahead = ahead = torch.zeros_like(values[..., 0])
    for j in reversed(range(values.size(-1))):
        here, g = own[..., j], weights[..., j]
        now = rewards[..., j] + g * value_ahead - values[..., j] + g * lam * ahead
        advantages[..., j] = torch.where(here, now, 0.0)
        ahead = torch.where(here, now, ahead)
        value_ahead = torch.where(here, values[..., j], value_ahead)
    return advantages, torch.where(own, advantages + values, 0.0)


def whitened(values: Tensor, epsilon: float = 1e-8) -> Tensor:
    """Values (n,) with mean 0 and standard deviation 1 (n - 1 in the denominator); alike gives 0.

    >>> whitened(torch.tensor([1.0, 2.0, 3.0])), whitened(torch.tensor([0.3]))
    (tensor([-1.,  0.,  1.]), tensor([0.]))
    """
    if len(values) < 2:
        return torch.zeros_like(values)
    return (values - values.mean()) / (values.var() + epsilon).sqrt()


def clipped_surrogate(logps: Tensor, old: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """-min(rho A, clip(rho, 1 - clip, 1 + clip) A) at each token, rho = exp(logps - old).

    Args:
        logps: (n,) or any other shape: log-probs of the tokens under the policy in training.
        old: Those under the policy that said them, of the same shape.
        advantages: Of the same shape.
        clip: Half-width of the range of ratios that gain anything.
    """
    ratio = (logps - old).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def clipped(logps: Tensor, old: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Whether a token has no gradient any more, since its ratio went as far as it may."""
    ratio = (logps - old).exp()
    above, below = ratio > 1 + clip, ratio < 1 - clip
    return torch.where(advantages > 0, above, below & (advantages < 0))


def clipped_value_loss(values: Tensor, old: Tensor, returns: Tensor, clip: float) -> Tensor:
    """Half of max((v - G)^2, (v' - G)^2) at each position; v' is v within ``clip`` of ``old``."""
    near = old + (values - old).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns).square(), (near - returns).square())


def approximate_kl(logps: Tensor, old: Tensor) -> Tensor:
    """Rho - 1 - log rho at each token: never negative, its mean over the old policy's tokens is KL.

    KL(old || new) in nats per token, from tokens that the old policy drew.
    """
    gap = logps - old
    return gap.exp() - 1 - gap


def explained_variance(returns: Tensor, values: Tensor) -> float:
    """1 - Var(G - V) / Var(G): 1 for a perfect V, 0 for a constant; NaN where G does not vary.

    >>> explained_variance(torch.tensor([0.0, 1.0]), torch.tensor([0.25, 0.75]))
    0.75
    """
    spread = float(returns.double().var(correction=0))
    if spread == 0:
        return float("nan")
    return 1 - float((returns - values).double().var(correction=0)) / spread
