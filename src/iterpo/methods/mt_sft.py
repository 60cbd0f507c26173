"""MT-SFT: imitate the agent in the conversations that ended in agreement (appendix E.4)."""

from __future__ import annotations

from dataclasses import dataclass, field

from iterpo.domain import PolicyRef
from iterpo.methods.base import RoundBatch, Workspace
from iterpo.policy_improvement.logged import (
    LoggedConfig,
    OffPolicy,
    examples,
    learner,
    on_policy,
)

__all__ = ["MtSft", "MtSftOptions"]


@dataclass(frozen=True, slots=True)
class MtSftOptions:
    """Settings of MT-SFT; the defaults are the paper's. `improve.lora` and its seed apply too."""

    learning_rate: float = 1e-5
    """Peak learning rate; it falls linearly to 0."""
    epochs: int = 1
    """Passes over the agreed conversations, where `steps` is not given."""
    steps: int | None = None
    """Optimizer steps; null: as many as `epochs` needs."""
    batch_size: int = 1
    """Conversations in a forward pass; memory, never the result."""
    gradient_accumulation: int = 8
    """Forward passes per optimizer step."""
    max_length: int | None = None
    """Most tokens of a state with its response; null: the context. No message is cut in two."""
    drop_old_turns: bool = False
    """Shorten prompts that don't fit by leaving out whole oldest turns; else they are an error."""
    off_policy: OffPolicy = "refuse"
    """Explored conversations: `refuse` them, or `drop` (leave them out)."""

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        self.training()

    def training(self) -> LoggedConfig:
        """How to go through the conversations."""
        return LoggedConfig.of(self)


@dataclass(frozen=True, slots=True)
class MtSft:
    """Supervised fine-tuning on success; no reward is optimised.

    The loss is the mean over the agent's tokens. In a round without any agreement there is nothing
    to imitate, and the policy is given back as it is.
    """

    Options = MtSftOptions

    options: MtSftOptions = field(default_factory=MtSftOptions)
    """Settings."""

    def update(self, policy: PolicyRef, batch: RoundBatch, workspace: Workspace) -> PolicyRef:
        """One round."""
        own = on_policy(workspace.own(batch), self.options.off_policy)
        talks = [examples(c) for c in own]
        agreed = [turns for turns in talks if turns and turns[0].agreed]
        if not agreed:
            workspace.note(
                f"none of {len(own)} conversations ended in agreement after the agent spoke: "
                "nothing to imitate, the policy stays as it is"
            )
            return policy
        return workspace.learn(policy, batch, learner("sft", agreed, self.options.training()))
