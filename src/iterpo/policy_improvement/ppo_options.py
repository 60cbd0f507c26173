"""PpoOptions: what single-turn PPO is told beside the common settings; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

from iterpo.domain.rules import broken, within

__all__ = ["PpoOptions"]


@dataclass(frozen=True, slots=True)
class PpoOptions:
    """What ``operator: ppo`` is told beside the common settings.

    The predecessor paper names PPO and gives no number; clip, lambda and the number of updates are
    what PPO's public code agrees on.
    """

    updates: int = 4
    """Optimizer steps on each batch of candidates; they count in ``steps``."""
    clip: float = 0.2
    """How far the ratio of a token to the policy that drew it may gain anything from 1."""
    lam: float = 0.95
    """Lambda of the advantages, per token; the discount inside a response is 1."""
    whiten: bool = True
    """Whether a batch's advantages are brought to mean 0, and divided by their deviation with
    ``std_floor`` and ``std_epsilon``."""
    value_ridge: float = 1.0
    """Pull of the value head towards a constant, in mean variances of a hidden state's entries."""
    value_memory: float = 0.9
    """Weight that what the value head learned from keeps from batch to batch, in [0, 1]."""

    def mistakes(self) -> list[str]:
        """Everything wrong with these values; empty if all is well."""
        share = within("[0, 1]")
        return broken(
            self,
            updates=within("[1, inf)"),
            clip=within("(0, 1)"),
            lam=share,
            value_ridge=within("(0, inf)"),
            value_memory=share,
        )
