"""UpperBound: a Q as a score that is high where its heads disagree, for exploring.

The counterpart of ``QConfig.pessimism``: what improvement must distrust is what collection should
try, since a response that was tried is one that the next Q knows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from iterpo.domain import Response, State
from iterpo.errors import ConfigError
from iterpo.policy_evaluation.qfunction import QFunction

__all__ = ["UpperBound"]


@dataclass(frozen=True, slots=True)
class UpperBound:
    """A ``Reward``: mean + scale x standard deviation over the heads, in the unit of the returns.

    Neither ``pessimism`` nor ``clamp`` of the Q applies: bounded, all responses whose upper ends
    lie beyond the best return seen would tie, and what is known best would go untried.
    """

    q: QFunction
    """A fitted Q."""
    scale: float
    """Standard deviations (n - 1 in the denominator), 0 or more."""

    def __post_init__(self) -> None:
        """Refuse a bound that one head can't have.

        Raises:
            ConfigError: with what is accepted.
        """
        heads = self.q.config.heads
        if not 0 <= self.scale < math.inf or (self.scale > 0 and heads < 2):
            raise ConfigError(
                f"scale: given {self.scale} with a Q of {heads} heads; accepted: 0, or above 0 "
                "with 2 heads or more, since one head has no spread"
            )

    def __call__(
        self, states: Sequence[State], responses: Sequence[Response]
    ) -> list[float | None]:
        """One score per (state, response); None where a response has no features.

        Raises:
            ContextOverflowError: if a state and its response do not fit the backbone's context.
        """
        return self.q.rated(states, responses, lambda rows: self.q.head.unbounded(rows, self.scale))
