"""Objective: what an operator makes of the rewards of candidates; all else operators share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

__all__ = ["Advantages", "Objective", "Scored"]


@dataclass(frozen=True, slots=True)
class Scored:
    """A batch of N candidates, G consecutive ones per state, with their rewards."""

    rewards: torch.Tensor
    """(N,), NaN where a candidate has none."""
    mask: torch.Tensor
    """(N, T), 1 on the tokens of each."""
    own: torch.Tensor
    """(N,) bool: drawn at the policy's own temperature."""
    states: Callable[[], torch.Tensor]
    """Computes the hidden states (n, d) of the policy before each of the n tokens, row by row."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantages of N = P * G candidates, G consecutive ones per prompt."""

    values: torch.Tensor
    """(N,), or (N, T) by token, float32; 0 for unscored candidates and in tied groups."""
    scored: torch.Tensor
    """(N,) bool; False where the score is missing or not finite."""
    tied: torch.Tensor
    """(P,) bool; True for a group that says nothing, from which no term of the loss shall pull."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the step beside the common ones."""


class Objective(Protocol):
    """What an operator makes of rewards; a new one for every phase."""

    whole_responses: bool
    """Whether the loss is a mean over responses of sums over their tokens, or a mean over tokens.
    It scales the whole loss of a step, KL term and entropy bonus included."""

    def advantages(self, batch: Scored) -> Advantages:
        """Advantages of a batch; may learn from it."""
        ...

    def store(self, folder: Path) -> None:
        """Put what a resumed phase needs into a checkpoint."""
        ...

    def restore(self, folder: Path) -> None:
        """Take over what ``store`` left."""
        ...
