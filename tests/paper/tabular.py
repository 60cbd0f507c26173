"""Problems small enough to know everything about: exact values by linear algebra alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Problem", "kl", "policy", "problems"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Problem:
    """A Markov decision process; a policy is a table (S, A) of probabilities."""

    moves: Array
    """(S, A, S)."""
    rewards: Array
    """(S, A)."""
    gamma: float

    def values(self, policy: Array) -> Array:
        """V^pi (S,)."""
        moves, rewards = self._under(policy)
        return np.asarray(np.linalg.solve(np.eye(len(moves)) - self.gamma * moves, rewards))

    def q(self, policy: Array) -> Array:
        """Q^pi (S, A)."""
        return self.rewards + self.gamma * self.moves @ self.values(policy)

    def visits(self, policy: Array) -> Array:
        """Discounted visits (S, S) from each first state; rows sum to 1."""
        moves, _ = self._under(policy)
        return (1 - self.gamma) * np.linalg.inv(np.eye(len(moves)) - self.gamma * moves)

    def optimum(self) -> Array:
        """V* (S,) by value iteration, to within gamma^500."""
        values = np.zeros(len(self.rewards))
        for _ in range(500):
            values = (self.rewards + self.gamma * self.moves @ values).max(axis=1)
        return values

    def _under(self, policy: Array) -> tuple[Array, Array]:
        return np.einsum("sa,sat->st", policy, self.moves), (policy * self.rewards).sum(axis=1)


def policy(rng: np.random.Generator, states: int, actions: int) -> Array:
    """Random, with every action possible."""
    return np.asarray(0.02 / actions + 0.98 * rng.dirichlet(np.ones(actions), states))


def problems(n: int, seed: int = 0) -> Iterator[tuple[Problem, Array, np.random.Generator]]:
    """Random problems, each with a random policy and a stream for what else is drawn."""
    for i in range(n):
        rng = np.random.default_rng([seed, i])
        states, actions = (int(x) for x in rng.integers(2, 6, 2))
        moves = rng.dirichlet(np.full(states, 0.5), (states, actions))
        found = Problem(moves, rng.normal(size=(states, actions)), float(rng.uniform(0.0, 0.95)))
        yield found, policy(rng, states, actions), rng


def kl(p: Array, q: Array) -> Array:
    """KL(p || q) of each row, in nats."""
    return np.asarray((p * np.log(p / q)).sum(axis=1))
