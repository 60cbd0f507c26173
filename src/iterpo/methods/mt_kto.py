"""MT-KTO: every agent turn is good or bad as its conversation was agreed or not (appendix E.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from iterpo.domain import PolicyRef, Response, State
from iterpo.domain.rules import refuse, within
from iterpo.methods.base import RoundBatch, Workspace
from iterpo.policy_improvement.logged import (
    LoggedConfig,
    OffPolicy,
    examples,
    learner,
    on_policy,
)

__all__ = ["MtKto", "MtKtoOptions"]


@dataclass(frozen=True, slots=True)
class MtKtoOptions:
    """Settings of MT-KTO; the defaults are the paper's. `improve.lora` and its seed apply too."""

    beta: float = 0.1
    """How soon a turn that has moved away from the initial policy stops counting; above 0."""
    learning_rate: float = 1e-5
    """Peak learning rate; it falls linearly to 0."""
    epochs: int = 1
    """Passes over the agent turns, where `steps` is not given."""
    steps: int | None = None
    """Optimizer steps; null: as many as `epochs` needs."""
    batch_size: int = 2
    """Turns in a forward pass, 2 or more: the KL term is estimated within it."""
    gradient_accumulation: int = 4
    """Forward passes per optimizer step."""
    max_length: int | None = None
    """Most tokens of a state with its response; null: the context. No message is cut in two."""
    drop_old_turns: bool = False
    """Shorten prompts that don't fit by leaving out whole oldest turns; else they are an error."""
    off_policy: OffPolicy = "refuse"
    """Explored conversations: `refuse` them, or `drop` (leave them out)."""

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        refuse(
            self,
            self.training,
            beta=within("(0, inf)"),
            batch_size=(lambda v: v >= 2, "2 or more (the KL term needs another response)"),
        )

    def training(self) -> LoggedConfig:
        """How to go through the turns."""
        return LoggedConfig.of(self)


@dataclass(frozen=True, slots=True)
class MtKto:
    """Binary feedback on whole conversations, without pairs; the reference is the initial policy.

    The classes weigh alike: N / (2 n) for each of the n turns of a class. In a round that has one
    class only, that one is trained on alone, with weight 1/2. With fewer than two turns there is no
    KL term, and the policy is given back as it is.
    """

    Options = MtKtoOptions

    options: MtKtoOptions = field(default_factory=MtKtoOptions)
    """Settings."""

    def update(self, policy: PolicyRef, batch: RoundBatch, workspace: Workspace) -> PolicyRef:
        """One round."""
        own = on_policy(workspace.own(batch), self.options.off_policy)
        turns = [turn for c in own for turn in examples(c)]
        agreed = sum(turn.agreed for turn in turns)
        if len(turns) < 2:
            workspace.note(
                f"{len(turns)} agent turns in {len(own)} conversations: the KL term needs 2, the "
                "policy stays as it is"
            )
            return policy
        if agreed in (0, len(turns)):
            only = "agreed" if agreed else "not agreed"
            workspace.note(f"all {len(turns)} agent turns are {only}: trained on that class alone")

        def reference(
            states: Sequence[State], responses: Sequence[Response]
        ) -> Sequence[Sequence[float]]:
            return workspace.log_probs(batch.initial_policy, states, responses)

        training = learner(
            "kto",
            turns,
            self.options.training(),
            beta=self.options.beta,
            reference=reference,
            reference_policy=batch.initial_policy.id,
        )
        return workspace.learn(policy, batch, training)
