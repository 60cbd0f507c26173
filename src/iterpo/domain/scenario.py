"""A scenario: the fixed circumstances of a conversation (the paper's kernel)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["Scenario", "Split"]


class Split(StrEnum):
    """Which scenarios may be trained on."""

    TRAIN = "train"
    """Collected in every round."""
    HELDOUT = "heldout"
    """Only ever measured on."""

    @property
    def code(self) -> int:
        """Number of the split in seeds: 0 train, 1 held-out."""
        return 0 if self is Split.TRAIN else 1


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kernel of a game."""

    kernel_id: str
    """Stable name, unique within the environment."""
    environment: str
    """Registry name of the game."""
    split: Split
    """Train or held-out."""
    facts: Mapping[str, Any]
    """Game-specific values (JSON types only), read by the environment alone."""
