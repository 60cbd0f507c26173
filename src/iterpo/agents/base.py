"""Whoever can speak: ``async reply(view) -> Reply``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from iterpo.domain import Exploration, Role, Sampled, Scenario, Turn, View

__all__ = ["Agent", "AgentFactory", "Explorer", "Reply", "Seat"]


@dataclass(frozen=True, slots=True)
class Seat:
    """A place in one conversation: what an agent may know about it beside its view."""

    scenario: Scenario
    """Kernel being played."""
    role: Role
    """Which side sits here."""
    round: int
    """Deployment round i."""
    replica: int
    """Index among the conversations of this kernel and round."""
    seed: int
    """Seed of this conversation; sampling seeds derive from it and the message index."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One message of an agent."""

    text: str
    """What it says."""
    sampled: Sampled | None = None
    """How it was sampled, where a model spoke."""
    off_policy: bool = False
    """True if exploration changed the distribution that it was drawn from."""
    model: str = ""
    """Name that a server gives the model that spoke; empty if it gives none."""
    n_tokens: int = 0
    """Length of a served reply in tokens; 0 if the server does not say."""

    def turn(self, role: Role) -> Turn:
        """The reply as a turn of the transcript."""
        return Turn(role, self.text, sampled=self.sampled, off_policy=self.off_policy)


class Agent(Protocol):
    """One party of one conversation."""

    async def reply(self, view: View) -> Reply:
        """The next message, given what this party sees."""
        ...

    def close(self) -> None:
        """The conversation is over (called exactly once, also after a failure)."""
        ...


@runtime_checkable
class Explorer(Protocol):
    """What an agent offers besides if its conversation was drawn under exploration."""

    @property
    def exploration(self) -> Exploration:
        """The draw; noted on the conversation, also if the agent never gets to speak."""
        ...


class AgentFactory(Protocol):
    """Gives every conversation its own agent."""

    def __call__(self, seat: Seat) -> Agent:
        """An agent for one seat."""
        ...
