"""compare: is one policy better than another on the same kernels?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from iterpo.domain import Conversation, Ending, discounted_return
from iterpo.errors import BatchError
from iterpo.measure.intervals import Interval, paired_difference
from iterpo.measure.returns import scored

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences new - old, paired by kernel; each shared kernel weighs the same."""

    gamma: float
    """Discount factor of J."""
    n_kernels: int
    """Shared kernels."""
    unpaired_kernels: int
    """Kernels that only one side played; left out."""
    J_agent_turn: Interval
    """Difference in J per agent action."""
    J_message: Interval
    """Difference in J per message."""
    agreement: Interval
    """Difference in the agreement rate."""
    reward: Interval
    """Difference in the undiscounted reward."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {k: v.to_dict() if isinstance(v, Interval) else v for k, v in values.items()}


def compare(
    new: Sequence[Conversation], old: Sequence[Conversation], gamma: float = 0.9
) -> Comparison:
    """Paired differences between two sets of conversations on the same kernels.

    Raises:
        BatchError: if a side has no scored conversation, or the sides share no kernel.
    """
    ours, theirs = scored(new), scored(old)
    mine, other = ({c.kernel_id for c in side} for side in (ours, theirs))
    if not mine & other:
        raise BatchError(
            f"the two sets share no kernel ({len(mine)} and {len(other)} kernels): a paired "
            "difference needs the same scenarios on both sides; collect with the same data seed"
        )

    def difference(value: Callable[[Conversation], float]) -> Interval:
        sides = [([value(c) for c in s], [c.kernel_id for c in s]) for s in (ours, theirs)]
        found = paired_difference(sides[0], sides[1])
        assert found is not None  # noqa: S101  - shared kernels were checked above
        return found

    return Comparison(
        gamma=gamma,
        n_kernels=len(mine & other),
        unpaired_kernels=len(mine ^ other),
        J_agent_turn=difference(lambda c: discounted_return(c, gamma, "agent_turn")),
        J_message=difference(lambda c: discounted_return(c, gamma, "message")),
        agreement=difference(lambda c: float(c.outcome.ending is Ending.AGREED)),
        reward=difference(lambda c: float(c.outcome.reward or 0.0)),
    )
