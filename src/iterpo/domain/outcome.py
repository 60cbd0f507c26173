"""How a conversation ended and what it was worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Ending", "Outcome"]


class Ending(StrEnum):
    """Why a conversation stopped."""

    AGREED = "agreed"
    """A deal closed (the paper's o_t = 1)."""
    REFUSED = "refused"
    """One side walked away; reward 0."""
    TURN_LIMIT = "turn_limit"
    """The message limit was reached; reward 0."""
    ABANDONED = "abandoned"
    """One side fell silent; the reward is unknown."""
    INVALID = "invalid"
    """The transcript breaks the protocol of the source and can't be scored."""
    INFRASTRUCTURE_FAILURE = "infrastructure_failure"
    """A model, server or parser failed: no reward at all, never a zero."""

    @property
    def scored(self) -> bool:
        """Whether a reward exists, so that the conversation counts in J and in training."""
        return self in (Ending.AGREED, Ending.REFUSED, Ending.TURN_LIMIT)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result record of a conversation (section 4.1 of the paper; terminal reward r_tau)."""

    ending: Ending
    """Why it stopped."""
    reward: float | None = None
    """Undiscounted terminal reward r_tau; None where no reward exists."""
    terms: Mapping[str, float | int | str] = field(default_factory=dict)
    """Agreed terms by name."""
    closed_by: str = ""
    """What closed the deal: ``match``, ``box``, ``accept``, ``echo_verbatim``, ``echo_mirror``."""
    closing_message: int = -1
    """Index of the last message (opening = 0)."""
    flags: tuple[str, ...] = ()
    """Per-game remarks, e.g. ``above_list``."""
    detail: str = ""
    """Reason of a failure, for people."""
