"""A guard on how far one phase may move the policy: a KL term that stiffens, and a hard stop.

KL is that of whole responses, in nats: sum over a response's tokens of KL(policy || the round's
policy) at that token, averaged over responses that the policy itself drew. A response is one
action of the reduction, and the bounds on what a new policy can lose are in terms of actions; a
limit per token would let long responses move further.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["KlGuard"]

_FIRST_BETA = 1.0
_STIFFNESS = 6.0
_MOST = 1.0


@dataclass(slots=True)
class KlGuard:
    """Follows the measured KL; asks for the weight of the KL term and says when to stop."""

    beta: float
    """``ImproveConfig.beta``: with a target, the weight at the target; 0 then means 1."""
    target: float | None = None
    """KL to settle at; None: the weight stays ``beta``."""
    stop: float | None = None
    """KL at which the phase ends; None: never."""
    kept_step: int = 0
    """Steps done in the latest policy that was measured within ``stop``."""
    stopped: bool = False
    """Whether the phase is to end."""

    @property
    def active(self) -> bool:
        """Whether anything depends on the measured KL."""
        return self.target is not None or self.stop is not None

    def weight(self, kl: float) -> float:
        """Weight of the KL term for a policy that was measured at ``kl`` nats per response.

        It grows with exp(6 (kl / target - 1)), up to kl = 2 target: nothing holds the policy back
        near the start, and everything does beyond the target. It depends on the policy alone, not
        on the past, so there is no state to oscillate or to be lost.

        >>> guard = KlGuard(beta=0.5, target=2.0)
        >>> [round(guard.weight(kl), 3) for kl in (0.0, 2.0, 3.0, 99.0)]
        [0.001, 0.5, 10.043, 201.714]
        """
        if self.target is None:
            return self.beta
        excess = min(kl / self.target - 1, _MOST)
        return (self.beta or _FIRST_BETA) * math.exp(_STIFFNESS * excess)

    def within(self, kl: float, step: int) -> bool:
        """Note the policy after ``step`` steps; False if it is too far, and the phase must end."""
        if self.stop is not None and kl > self.stop:
            self.stopped = True
        if not self.stopped:
            self.kept_step = step
        return not self.stopped
