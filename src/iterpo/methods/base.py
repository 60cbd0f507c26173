"""What a method is: logged conversations in, a better policy out, and nothing else in reach."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Protocol, cast

from iterpo.domain import Conversation, PolicyRef, Reward
from iterpo.errors import UnknownNameError

__all__ = ["REGISTRY", "Method", "RoundBatch", "Workspace", "make", "names"]

REGISTRY = {
    "iterpo": "iterpo.methods.iterpo:IterPO",
    "st_grpo": "iterpo.methods.st_grpo:StGrpo",
}
"""Built-in methods; other packages add theirs by the entry-point group ``iterpo.methods``."""


@dataclass(frozen=True, slots=True)
class RoundBatch:
    """All that a method may learn from in round i: logged data, no simulator."""

    round: int
    """Index i of the round."""
    conversations: tuple[Conversation, ...]
    """D_i, logged under pi_i: all rounds' logs of it, where it was deployed more than once."""
    initial_policy: PolicyRef
    """pi_0."""
    earlier: tuple[tuple[Conversation, ...], ...] = ()
    """Logs of other policies, by round: D_0 … D_{i-1} as a rule."""


class Workspace(Protocol):
    """The two operators of the reduction, with their settings, storage and resumption."""

    def fit_q(self, policy: PolicyRef, batch: RoundBatch, *, gamma: float | None = None) -> Reward:
        """Observation 3.5: Q^pi by regression on Monte-Carlo returns; ``gamma`` overrides."""
        ...

    def improve(self, policy: PolicyRef, batch: RoundBatch, *, reward: Reward) -> PolicyRef:
        """Observation 3.1: single-turn RL on the logged states with any reward."""
        ...


class Method(Protocol):
    """One row of the paper's Table 1."""

    def update(self, policy: PolicyRef, batch: RoundBatch, workspace: Workspace) -> PolicyRef:
        """pi_i and D_i to pi_{i+1}."""
        ...


def names() -> tuple[str, ...]:
    """Registered methods, built-in ones first."""
    plugins = {e.name for e in entry_points(group="iterpo.methods")}
    return (*REGISTRY, *sorted(plugins - set(REGISTRY)))


def make(name: str) -> Method:
    """The method of that name.

    Raises:
        UnknownNameError: if it is not registered.
    """
    if name in REGISTRY:
        module, _, attribute = REGISTRY[name].partition(":")
        return cast(Method, getattr(import_module(module), attribute)())
    for plugin in entry_points(group="iterpo.methods", name=name):
        return cast(Method, plugin.load()())
    raise UnknownNameError(
        f"no method is called {name!r}; available: {', '.join(names())}. "
        "A method of your own is registered by the entry-point group 'iterpo.methods'."
    )
