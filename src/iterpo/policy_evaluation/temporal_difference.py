"""Temporal differences: Q^pi by regression on r_t + gamma Q(s_{t+1}, a_{t+1}) (section 3.4).

Each iteration is the single-turn regression of Observation 3.5 once more, from scratch, on targets
that the Q before it gives; the first one has the logged returns as its targets. After n iterations
a row's target is the reward of an episode that ends within n actions, and leans on Q only beyond.

Which rows an estimator may use is a question about what follows a_t, since Q takes s_t and a_t as
given, whoever said them and whatever led there:

- ``monte_carlo`` needs every later action to be the policy's own, or weighed by the product of
  their ratios.
- ``sarsa`` needs the next action to be the policy's own, or weighed by that one ratio. With one
  explored message a conversation only the row before it is lost.
- ``fitted_q`` draws the next action itself, at states that the partner's real answers led to. All
  rows will do: personas', optimistic ones, older policies', text only.

What none of them repairs: Q at (s_{t+1}, a) must be known for the actions that the policy takes
there, from some row of the log; and the partner must be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from iterpo.domain import Conversation, Decision, Response, State
from iterpo.errors import BatchError, ConfigError
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.qfunction import ValueHead
from iterpo.policy_evaluation.regression import regress
from iterpo.policy_evaluation.transitions import Transition, transitions

__all__ = [
    "Ahead",
    "Pairs",
    "Respond",
    "check_respond",
    "iterate",
    "pairs_ahead",
]

Respond = Callable[[Sequence[State]], Sequence[Sequence[Response]]]
"""What the policy says at each state, drawn as it was deployed; states may be left without one."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """What n rows lead to."""

    rewards: tuple[float, ...]
    """(n,)."""
    discounts: tuple[float, ...]
    """(n,)."""
    states: tuple[State, ...]
    """m next states, each as often as there is an action to look at."""
    responses: tuple[Response, ...]
    """Their actions."""
    owners: tuple[int, ...]
    """For each of the m, the row that it follows."""


def pairs_ahead(
    rows: Sequence[Decision],
    conversations: Sequence[Conversation],
    config: QConfig,
    respond: Respond | None,
) -> Pairs:
    """The next states of rows, with the logged action or with those that the policy draws.

    Args:
        rows: n rows.
        conversations: Of each, the one that it comes from.
        config: With estimator ``sarsa`` or ``fitted_q``.
        respond: For ``fitted_q``; called once, with each next state once.

    Raises:
        ConfigError: if ``fitted_q`` has nobody to respond.
        BatchError: if the number of answers is not that of the states.
    """
    check_respond(config, respond)
    found: dict[int, tuple[Transition, ...]] = {}
    steps = []
    for row, c in zip(rows, conversations, strict=True):
        if id(c) not in found:
            found[id(c)] = transitions(c, config.gamma, config.discount_unit)
        steps.append(found[id(c)][row.state.t - 1])
    following = [(i, step.following) for i, step in enumerate(steps) if step.following is not None]
    if config.estimator == "sarsa" or respond is None:
        said: Sequence[Sequence[Response]] = [[ahead.response] for _, ahead in following]
    else:
        said = respond([ahead.state for _, ahead in following])
        if len(said) != len(following):
            raise BatchError(f"{len(said)} answers for {len(following)} states; give one for each")
    every = [(i, d.state, a) for (i, d), mine in zip(following, said, strict=True) for a in mine]
    return Pairs(
        tuple(step.reward for step in steps),
        tuple(step.discount for step in steps),
        tuple(state for _, state, _ in every),
        tuple(response for _, _, response in every),
        tuple(i for i, _, _ in every),
    )


def check_respond(config: QConfig, respond: Respond | None) -> None:
    """Refuse fitted Q evaluation without a policy that speaks.

    Raises:
        ConfigError: see there.
    """
    if config.estimator == "fitted_q" and respond is None:
        raise ConfigError(
            "estimator: given 'fitted_q' without responses of the policy; accepted: monte_carlo, "
            "sarsa, or a `respond` that draws them (iterpo.fit_q and runs bring their own)"
        )


@dataclass(frozen=True, slots=True)
class Ahead:
    """Targets of n rows as a function of the Q that they lean on."""

    rewards: Tensor
    """(n,) fp32."""
    discounts: Tensor
    """(n,) fp32."""
    features: Tensor
    """(m, d) of the pairs that follow, all finite."""
    owners: Tensor
    """(m,) rows that they follow."""

    @classmethod
    def of(cls, pairs: Pairs, features: Tensor) -> Ahead:
        """From pairs and their features (m, d); pairs without features are left out."""
        known = torch.isfinite(features).all(dim=1) & (features.shape[1] > 0)
        return cls(
            torch.tensor(pairs.rewards, dtype=torch.float32),
            torch.tensor(pairs.discounts, dtype=torch.float32),
            features[known],
            torch.tensor(pairs.owners, dtype=torch.long)[known],
        )

    @property
    def complete(self) -> Tensor:
        """Rows (n,) bool that end, or that a pair with features follows."""
        followed = torch.zeros(len(self.rewards), dtype=torch.bool)
        followed[self.owners] = True
        return followed | (self.discounts == 0)

    def where(self, mask: Tensor) -> Ahead:
        """Of the rows in ``mask`` (n,) alone."""
        place = torch.cumsum(mask, 0) - 1
        kept = mask[self.owners]
        return Ahead(
            self.rewards[mask],
            self.discounts[mask],
            self.features[kept],
            place[self.owners[kept]],
        )

    @torch.no_grad()
    def targets(self, head: ValueHead) -> Tensor:
        """r_t + gamma * mean Q over the pairs that follow: (n,), as ``head`` scores them."""
        n = len(self.rewards)
        if not len(self.owners):
            return self.rewards
        total = torch.zeros(n).index_add(0, self.owners, head(self.features))
        count = torch.zeros(n).index_add(0, self.owners, torch.ones(len(self.owners)))
        return self.rewards + self.discounts * total / count.clamp(min=1)


def iterate(
    features: Tensor,
    returns: Tensor,
    ahead: Ahead,
    config: QConfig,
    on_epoch: Callable[[int, float, ValueHead], None] | None = None,
    weights: Tensor | None = None,
) -> tuple[ValueHead, Tensor]:
    """Fit Q by ``config.td_iterations`` regressions after the first; arguments as ``regress``.

    Args:
        features: (n, d).
        returns: (n,), the targets of the first regression.
        ahead: What the n rows lead to.
        config: How many, and how each is fitted.
        on_epoch: Called with epochs that count on from regression to regression.
        weights: (n,) or None, the same in all of them.

    Returns:
        The last head and the targets (n,) that it was fitted to.
    """

    def counting_on(n: int) -> Callable[[int, float, ValueHead], None] | None:
        if on_epoch is None:
            return None
        return lambda epoch, mse, head: on_epoch(n * config.epochs + epoch, mse, head)

    targets = returns
    head = regress(features, targets, config, counting_on(0), weights)
    for n in range(1, config.regressions):
        targets = ahead.targets(head)
        head = regress(features, targets, config, counting_on(n), weights)
    return head, targets
