"""ArCHer, offline: IQL twin critics on an encoder, a weighted-imitation actor (appendix E.7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iterpo.domain import PolicyRef
from iterpo.domain.rules import refuse, within
from iterpo.errors import ModelError, UnknownNameError
from iterpo.methods.actor_critic import OPTION_RULES, ActorCritic, Explored, actor_critic
from iterpo.methods.base import RoundBatch, Workspace
from iterpo.policy_evaluation.transitions import Transition

if TYPE_CHECKING:
    from iterpo.policy_evaluation.critics import Prepared

__all__ = ["ArCHer", "ArcherOptions"]

_OWN = "policy"


@dataclass(frozen=True, slots=True)
class ArcherOptions:
    """Settings of ArCHer; the defaults are the paper's (Table 4)."""

    encoder: str = "FacebookAI/roberta-base"
    """What the critic reads texts with: a local folder or hub id of any transformers encoder
    (RoBERTa in the paper; read at the first token, and its own tokenizer's limit cuts the beginning
    of a longer observation off) or of a causal model (read at the last token); or `policy`: a copy
    of pi_0 itself, read at the last token of its chat prompts, which needs no further model and is
    meant for small ones, since all of its weights are trained."""
    max_tokens: int | None = None
    """Most tokens of an observation or an action that the encoder is given, the last ones; null: as
    many as it reads."""
    critic_learning_rate: float = 1e-5
    """Step size of the critic's Adam."""
    critic_epochs: int = 3
    """Passes of the critic over the sample."""
    critic_batch_size: int = 32
    """Transitions in one of the critic's forward passes."""
    critic_accumulation: int = 4
    """Forward passes per step of the critic."""
    expectile: float = 0.9
    """What V is of the logged actions' values: 0.5 their mean; towards 1 their maximum."""
    target_ema: float = 0.05
    """Share of the critic that its target network takes over after every step."""
    capacity: int = 10_000
    """Transitions that the replay buffer holds, of all rounds; the oldest leave it first."""
    beta: float = 10.0
    """Inverse temperature: a turn is imitated with weight exp(beta * advantage); 0: all alike."""
    weight_clip: float | None = None
    """Largest such weight; null: none (ours)."""
    normalise: bool = False
    """Whether the weights are brought to mean 1, so that beta leaves the step size alone (ours)."""
    learning_rate: float = 1e-5
    """Peak learning rate of the actor; it falls linearly to 0."""
    epochs: int = 1
    """Passes of the actor over the sample, where `steps` is not given."""
    steps: int | None = None
    """Optimizer steps of the actor; null: as many as `epochs` needs."""
    batch_size: int = 1
    """Turns in one of the actor's forward passes."""
    gradient_accumulation: int = 16
    """Forward passes per step of the actor."""
    off_policy: Explored = "critic"
    """What explored turns are good for: `critic`, values are learned from them, but the actor does
    not imitate them; `both`, it does; `refuse`, they are an error. Turns of older policies are
    always learned from and imitated, as the paper has it."""

    def __post_init__(self) -> None:
        """Refuse impossible values.

        Raises:
            ConfigError: with one line for each mistake.
        """
        refuse(
            self,
            encoder=(bool, "policy, a local folder, or a hub id"),
            max_tokens=within("[1, inf)", null=""),
            **OPTION_RULES,
        )


class ArCHer:
    """Response-level Q and V of logged actions, and a policy that imitates the better ones.

    Observation and action are encoded separately; the encoder is trained with the critic's heads.
    """

    Options = ArcherOptions

    def __init__(self, options: ArcherOptions | None = None) -> None:
        self.options = options or ArcherOptions()

    def preflight(self) -> None:
        """Find out before a run whether the encoder can be had.

        Raises:
            ModelError: if not.
        """
        from iterpo.models.encoders import check_encoder

        if self.options.encoder == _OWN:
            return
        try:
            check_encoder(self.options.encoder)
        except (ModelError, UnknownNameError) as error:
            raise ModelError(
                f"method.options.encoder: {error} Or give {_OWN}: the critic then starts from a "
                "copy of the policy's own model."
            ) from error

    def update(self, policy: PolicyRef, batch: RoundBatch, workspace: Workspace) -> PolicyRef:
        """One round: the critic goes on from the last one, the actor from the policy."""
        o = self.options

        def prepare(rows: Sequence[Transition]) -> Prepared[Any]:
            from iterpo.models.encoders import load_encoder, policy_encoder
            from iterpo.policy_evaluation.critics import on_encoder

            if o.encoder == _OWN:
                encoder = policy_encoder(workspace.backbone(batch.initial_policy), o.max_tokens)
            else:
                device = workspace.backbone(policy).device
                encoder = load_encoder(o.encoder, device, o.max_tokens)
            return on_encoder(encoder, rows, workspace.q.seed)

        return actor_critic(policy, batch, workspace, prepare, ActorCritic.of(o))
