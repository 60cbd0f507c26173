"""Logged: what a training on logged responses takes, and which such trainings there are.

A training of this kind draws nothing: it takes (state, response) pairs as they were logged, each
with a label or a weight. It knows nothing of the distribution that explored turns were drawn from
and can't correct for them, so they are refused or left out. Nothing here imports torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast

from iterpo.domain import Conversation, Ending, Response, State, decisions
from iterpo.domain.rules import refuse, within
from iterpo.errors import BatchError, UnknownNameError
from iterpo.policy_improvement.base import ImproveResult, Learner, Training
from iterpo.policy_improvement.single_turn import visiting_order

__all__ = [
    "LEARNERS",
    "Example",
    "LoggedConfig",
    "OffPolicy",
    "Schedule",
    "examples",
    "learner",
    "on_policy",
    "schedule",
]

LEARNERS: dict[str, str] = {
    "awr": "iterpo.policy_improvement.awr:train",
    "kto": "iterpo.policy_improvement.kto:train",
    "mt_ppo": "iterpo.policy_improvement.mt_ppo:train",
    "sft": "iterpo.policy_improvement.sft:train",
}
"""Name -> ``module:function(training, …) -> ImproveResult``; a further one is a file and a line."""

OffPolicy = Literal["refuse", "drop"]
"""What is done about explored conversations."""


@dataclass(frozen=True, slots=True)
class Example:
    """One logged response, with what a training makes of it."""

    state: State
    """s_t."""
    response: Response
    """a_t, with its token ids as sampled where they are known."""
    agreed: bool
    """Whether its conversation ended in agreement (KTO's desirable)."""
    weight: float = 1.0
    """Factor of its loss (AWR)."""


@dataclass(frozen=True, slots=True)
class LoggedConfig:
    """How a training goes through logged examples; one is a turn or, for SFT, a conversation."""

    learning_rate: float = 1e-5
    """Peak learning rate; it falls linearly to 0."""
    epochs: int = 1
    """Passes over the examples, where ``steps`` is not given."""
    steps: int | None = None
    """Optimizer steps; None: as many as ``epochs`` needs."""
    batch_size: int = 1
    """Most examples in a forward pass."""
    gradient_accumulation: int = 8
    """Forward passes per optimizer step."""
    max_length: int | None = None
    """Most tokens of a state with its response; None: what the context holds. A message is never
    cut in two."""
    drop_old_turns: bool = False
    """Shorten prompts that don't fit by leaving out whole oldest turns; else they are an error."""

    def __post_init__(self) -> None:
        """Refuse impossible values.

        Raises:
            ConfigError: with one line for each mistake.
        """
        refuse(
            self,
            learning_rate=within("(0, inf)"),
            epochs=within("[1, inf)"),
            steps=within("[1, inf)", null="by epochs"),
            batch_size=within("[1, inf)"),
            gradient_accumulation=within("[1, inf)"),
            max_length=within("[2, inf)", null="the context"),
        )

    @classmethod
    def of(cls, options: Any) -> LoggedConfig:
        """The settings among a method's options, by their names; what it lacks is the default."""
        names = (f.name for f in fields(cls) if hasattr(options, f.name))
        return cls(**{name: getattr(options, name) for name in names})


def on_policy(
    conversations: Sequence[Conversation], off_policy: OffPolicy = "refuse"
) -> tuple[Conversation, ...]:
    """The scored conversations that the deployed policy led by itself.

    What was to be explored is drawn before a conversation starts, so those that are left are an
    unbiased sample of the policy's own.

    Raises:
        BatchError: if there are explored ones and ``off_policy`` is ``refuse``.
    """
    scored = [c for c in conversations if c.outcome.ending.scored]
    explored = sum(c.explored for c in scored)
    if explored and off_policy == "refuse":
        raise BatchError(
            f"{explored} of {len(scored)} conversations were explored: they are no sample of the "
            "policy, and this method can't correct for that. Set off_policy to drop "
            "(method.options.off_policy in a plan) to leave them out."
        )
    return tuple(c for c in scored if not c.explored)


def examples(conversation: Conversation) -> tuple[Example, ...]:
    """One example for each agent action, in order; none where no reward exists."""
    agreed = conversation.outcome.ending is Ending.AGREED
    return tuple(Example(d.state, d.response, agreed) for d in decisions(conversation, gamma=1.0))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which examples each optimizer step sees, in equal forward passes."""

    order: tuple[tuple[int, ...], ...]
    """Indices of the examples of each optimizer step; all steps see equally many."""
    batch_size: int
    """Examples in a forward pass."""

    @property
    def steps(self) -> int:
        """Optimizer steps."""
        return len(self.order)

    @property
    def accumulation(self) -> int:
        """Forward passes per optimizer step."""
        return len(self.order[0]) // self.batch_size

    @property
    def visits(self) -> tuple[int, ...]:
        """Indices of the examples in the order in which they are seen."""
        return tuple(i for step in self.order for i in step)

    def by_length(self, lengths: Sequence[int]) -> Schedule:
        """The same steps, each from short examples to long ones: a forward pass then pads little.

        For losses that are sums over the examples of a step, however these share forward passes.

        >>> Schedule(((0, 1, 2, 3), (3, 0, 1, 2)), 2).by_length([5, 9, 4, 9]).order
        ((2, 0, 1, 3), (2, 0, 3, 1))
        """
        order = tuple(tuple(sorted(step, key=lengths.__getitem__)) for step in self.order)
        return replace(self, order=order)


def schedule(n: int, config: LoggedConfig, seed: int) -> Schedule:
    """Shuffled passes over n examples, every step full: a last one is filled from the next pass.

    A step takes ``batch_size * gradient_accumulation`` examples. Where there are fewer, it takes as
    many full forward passes as they fill.

    >>> plan = schedule(10, LoggedConfig(batch_size=2, gradient_accumulation=2), seed=0)
    >>> plan.steps, plan.batch_size, plan.accumulation, sorted(set(plan.visits)) == list(range(10))
    (3, 2, 2, True)
    >>> few = schedule(3, LoggedConfig(batch_size=2, gradient_accumulation=4), seed=0)
    >>> few.steps, few.batch_size, few.accumulation
    (2, 2, 1)
    """
    size = min(n, config.batch_size)
    per_step = size * min(n // size, config.gradient_accumulation)
    steps = config.steps or -(-config.epochs * n // per_step)
    order = visiting_order(n, per_step, steps, seed)
    return Schedule(tuple(map(tuple, order)), size)


def learner(name: str, *inputs: Any, **options: Any) -> Learner:
    """A training of that name, ready for ``workspace.learn``; its module is loaded when it runs.

    Args:
        name: Name in ``LEARNERS``.
        inputs: Passed on to its function, after the ``Training``.
        options: Passed on by name.

    Raises:
        UnknownNameError: if it is not registered.
    """
    if name not in LEARNERS:
        raise UnknownNameError(
            f"there is no training on logged responses called {name!r}; choose one of "
            f"{', '.join(LEARNERS)}"
        )
    module, _, function = LEARNERS[name].partition(":")

    def run(training: Training) -> ImproveResult:
        train = getattr(importlib.import_module(module), function)
        return cast(ImproveResult, train(training, *inputs, **options))

    return run
