"""IqlConfig: how a critic is fitted by implicit Q-learning; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

from iterpo.domain.rules import refuse, within

__all__ = ["IqlConfig"]


@dataclass(frozen=True, slots=True)
class IqlConfig:
    """How a critic is fitted (IterPO paper, Tables 4 and 5)."""

    learning_rate: float
    """Step size of Adam."""
    batch_size: int
    """Transitions in a forward pass."""
    accumulation: int = 4
    """Forward passes per optimizer step."""
    epochs: int = 3
    """Passes over the transitions."""
    expectile: float = 0.9
    """tau: 0.5 is the mean of the logged actions' values, 1 their maximum."""
    target_ema: float = 0.05
    """Share of the critic that its target takes over after every optimizer step."""
    seed: int = 0
    """Root of the row order and the dropout."""

    def __post_init__(self) -> None:
        """Refuse impossible values.

        Raises:
            ConfigError: with one line for each mistake.
        """
        refuse(
            self,
            learning_rate=within("(0, inf)"),
            batch_size=within("[1, inf)"),
            accumulation=within("[1, inf)"),
            epochs=within("[1, inf)"),
            expectile=within("(0, 1)"),
            target_ema=within("(0, 1]"),
        )
