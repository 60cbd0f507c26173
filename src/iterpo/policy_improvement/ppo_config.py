"""PpoConfig: how multi-turn PPO goes through a batch; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from iterpo.domain.rules import refuse, within
from iterpo.policy_improvement.logged import LoggedConfig, OffPolicy

__all__ = ["CreditUnit", "PpoConfig"]

CreditUnit = Literal["turn", "token"]
"""What an action is to the advantages: a whole agent turn (the problem that the paper states), or a
token, with the discount where a turn ends."""


@dataclass(frozen=True, slots=True)
class PpoConfig:
    """How multi-turn PPO goes through a batch; the defaults are the paper's (appendix E.6).

    The discount is the plan's, `q.gamma` per `q.discount_unit` (.9 per agent turn in the paper), as
    methods that are compared share it. Marked (ours) is what the paper does not say. Its KL
    coefficient is 0, so there is no KL term.
    """

    lam: float = 0.95
    """Lambda of the advantages, in [0, 1], per `unit` (ours; TRL's default)."""
    unit: CreditUnit = "turn"
    """What an action is to the advantages: a whole agent `turn`, valued where it begins, whose
    tokens all get its advantage; or a `token`, discounted where a turn ends and not inside
    (ours)."""
    whiten: bool = True
    """Whether the batch's advantages are brought to mean 0 and deviation 1 (ours; TRL's way)."""
    learning_rate: float = 1e-5
    """Peak learning rate; it falls linearly to 0."""
    value_learning_rate: float | None = None
    """That of the head while it is fitted alone; null: `learning_rate`."""
    value_passes: int = 1
    """Passes over the batch in which the head alone is fitted to the discounted returns before
    advantages are formed (ours); 0: none, and in a first round V is then 0."""
    warm_start: bool = False
    """Whether that fit starts from the last round's instead of from 0 (ours)."""
    epochs: int = 1
    """Passes over the conversations, where `steps` is not given."""
    steps: int | None = None
    """Optimizer steps; null: as many as `epochs` needs."""
    batch_size: int = 1
    """Most conversations in a forward pass."""
    gradient_accumulation: int = 8
    """Forward passes per optimizer step."""
    max_length: int | None = 2048
    """Most tokens of a state with its response; null: what the context holds."""
    drop_old_turns: bool = False
    """Shorten prompts that don't fit by leaving out whole oldest turns; else they are an error."""
    clip: float = 0.2
    """How far the ratio of a token to the round's policy may gain anything from 1."""
    value_clip: float = 0.2
    """How far V may gain anything from what it was before the update."""
    value_coefficient: float = 0.1
    """Weight of the value loss; its gradient reaches the policy's weights, which V shares."""
    target_kl: float | None = 0.05
    """KL to the round's policy in nats per token; a step that would go on from more than 1.5 times
    as much ends the phase instead, as in TRL; null: never."""
    max_grad_norm: float = 1.0
    """Longest gradient of a step; longer ones are shortened to it (ours)."""
    off_policy: OffPolicy = "refuse"
    """Explored conversations: `refuse` them, or `drop` them."""

    def __post_init__(self) -> None:
        """Refuse impossible values.

        Raises:
            ConfigError: with one line for each mistake.
        """
        positive = within("(0, inf)")
        refuse(
            self,
            lambda: self.logged,
            lam=within("[0, 1]"),
            value_learning_rate=within("(0, inf)", null=""),
            value_passes=within("[0, inf)", zero="none"),
            clip=within("(0, 1)"),
            value_clip=positive,
            value_coefficient=within("[0, inf)"),
            target_kl=within("(0, inf)", null="never"),
            max_grad_norm=positive,
        )

    @property
    def logged(self) -> LoggedConfig:
        """How it goes through the conversations."""
        return LoggedConfig(
            learning_rate=self.learning_rate,
            epochs=self.epochs,
            steps=self.steps,
            batch_size=self.batch_size,
            gradient_accumulation=self.gradient_accumulation,
            max_length=self.max_length,
            drop_old_turns=self.drop_old_turns,
        )
