"""What an environment is: pure functions of (scenario, transcript)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from iterpo.domain import Outcome, Role, Scenario, Split, Turn, View

__all__ = ["Environment", "NoOptions", "PromptStyle"]

PromptStyle = Literal["full", "compact"]
"""``full`` conveys every rule in prose; ``compact`` is a few tokens for small models."""


@dataclass(frozen=True, slots=True)
class NoOptions:
    """Options of a game that has none."""


class Environment(Protocol):
    """A two-party game without state: the same functions score a simulation, a log and a chat."""

    name: str
    """Registry name."""

    @property
    def options(self) -> object:
        """Frozen options dataclass of the game; what was chosen, defaults included."""
        ...

    def scenarios(self, split: Split, n: int, data_seed: int = 42) -> tuple[Scenario, ...]:
        """The first ``n`` kernels of a split (fixed by ``data_seed``).

        Raises:
            MissingDataError: if the game's data folder is absent.
        """
        ...

    def opening(self, scenario: Scenario) -> Turn:
        """Message 0: the agent's scripted opening (``scripted=True``)."""
        ...

    def view(self, scenario: Scenario, role: Role, turns: Sequence[Turn]) -> View:
        """What one party sees; private values of the other side never appear."""
        ...

    def read(self, scenario: Scenario, turns: Sequence[Turn]) -> Outcome | None:
        """The outcome of a transcript, or None while the conversation goes on."""
        ...
