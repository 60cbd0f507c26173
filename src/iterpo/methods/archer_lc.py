"""ArCHer-LC: ArCHer with heads on the frozen policy model as its critic (appendix E.8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iterpo.domain import PolicyRef
from iterpo.domain.rules import refuse, within
from iterpo.methods.actor_critic import OPTION_RULES, ActorCritic, Explored, actor_critic
from iterpo.methods.base import RoundBatch, Workspace
from iterpo.policy_evaluation.base import Pooling
from iterpo.policy_evaluation.transitions import Transition

if TYPE_CHECKING:
    from iterpo.policy_evaluation.critics import Prepared

__all__ = ["ArCHerLC", "ArcherLcOptions"]


@dataclass(frozen=True, slots=True)
class ArcherLcOptions:
    """Settings of ArCHer-LC; the defaults are the paper's (Table 5)."""

    hidden: int = 256
    """Width of each head's hidden layer."""
    dropout: float = 0.1
    """Dropout probability after the ReLU, in [0, 1); that of IterPO's Q, whose architecture the
    paper says this critic has."""
    pooling: Pooling = "final"
    """Which hidden states of a response Q reads; V reads that of a prompt's last token."""
    standardise: bool = False
    """Whether features are brought to mean 0 and spread 1 over the first round's sample (ours)."""
    numbers: int = 0
    """How many figures of each message Q and V read from the text beside the hidden states, as
    IterPO's Q does (`q.numbers`; ours)."""
    critic_learning_rate: float = 1e-4
    """Step size of the critic's Adam."""
    critic_epochs: int = 3
    """Passes of the critic over the sample."""
    critic_batch_size: int = 8
    """Transitions in one of the critic's forward passes."""
    critic_accumulation: int = 4
    """Forward passes per step of the critic."""
    expectile: float = 0.9
    """What V is of the logged actions' values: 0.5 their mean; towards 1 their maximum."""
    target_ema: float = 0.05
    """Share of the critic that its target network takes over after every step."""
    capacity: int = 10_000
    """Transitions that the replay buffer holds, of all rounds; the oldest leave it first."""
    beta: float = 3.0
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
            hidden=within("[1, inf)"),
            dropout=within("[0, 1)"),
            numbers=within("[0, 1000]", zero="none"),
            **OPTION_RULES,
        )


class ArCHerLC:
    """Response-level Q and V on features of pi_0, frozen over the rounds, and the actor of ArCHer.

    The features stay those of pi_0, so that heads which go on from the last round's read what they
    were fitted to. `q.backbone` says in which form it is loaded (`nf4` in the paper).
    """

    Options = ArcherLcOptions

    def __init__(self, options: ArcherLcOptions | None = None) -> None:
        self.options = options or ArcherLcOptions()

    def update(self, policy: PolicyRef, batch: RoundBatch, workspace: Workspace) -> PolicyRef:
        """One round: the critic goes on from the last one, the actor from the policy."""
        o = self.options

        def prepare(rows: Sequence[Transition]) -> Prepared[Any]:
            from iterpo.policy_evaluation.critics import HeadShape, on_features

            q = workspace.q
            frozen = workspace.backbone(
                batch.initial_policy, "nf4" if q.backbone == "nf4" else None
            )
            heads = HeadShape(o.hidden, o.dropout, o.pooling, o.standardise, o.numbers)
            return on_features(frozen, rows, q, heads, q.seed)

        return actor_critic(policy, batch, workspace, prepare, ActorCritic.of(o))
