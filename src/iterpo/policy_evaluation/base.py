"""QConfig: how Q is fitted; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args, get_origin, get_type_hints

from iterpo.domain import DiscountUnit
from iterpo.domain.rules import broken, one_of, refuse, within
from iterpo.errors import ConfigError
from iterpo.models.lora import LoraSpec

__all__ = [
    "BackboneKind",
    "Estimator",
    "OffPolicy",
    "Pooling",
    "QConfig",
    "SplitUnit",
    "TuneConfig",
]

BackboneKind = Literal["shared", "nf4"]
"""``shared``: the frozen weights of the round's policy, no extra memory; ``nf4``: a 4-bit copy, the
paper's setting, for GPUs (slower and 31% off in the hidden state on CPUs)."""

Pooling = Literal["final", "final_and_mean"]
"""What the head reads: the hidden state of the final token (the paper), or that one beside the mean
over the response's tokens."""

Estimator = Literal["monte_carlo", "sarsa", "fitted_q"]
"""What Q is regressed on: the logged return, or the reward and Q of what follows: of the logged
next action (``sarsa``), or of actions that the policy draws there (``fitted_q``)."""

OffPolicy = Literal["refuse", "drop", "weight"]
"""What to do about targets that another distribution than the policy's brought about."""

SplitUnit = Literal["conversation", "kernel"]
"""What is never torn apart by the held-out split."""


@dataclass(frozen=True, slots=True)
class TuneConfig:
    """How the backbone is tuned together with a head that was fitted to its frozen features."""

    r: int = 16
    """Rank of the critic's adapter, on all linear layers; it need not be that of the policy's."""
    alpha: float = 32.0
    """Scale; updates are multiplied by `alpha / r`."""
    learning_rate: float = 1e-4
    """Step size of AdamW for the adapter; the head keeps `q.learning_rate`."""
    epochs: int = 3
    """Passes over the rows after those of the head; each runs the backbone forward and back for
    every row with its prompt, so this is what tuning costs."""

    def __post_init__(self) -> None:
        """Refuse impossible values.

        Raises:
            ConfigError: with one line for each mistake.
        """
        refuse(
            self,
            r=within("[1, inf)"),
            alpha=within("(0, inf)"),
            learning_rate=within("(0, inf)"),
            epochs=within("[1, inf)"),
        )

    @property
    def lora(self) -> LoraSpec:
        """Shape of the adapter."""
        return LoraSpec(self.r, self.alpha)


@dataclass(frozen=True, slots=True)
class QConfig:
    """How Q is fitted to logged conversations.

    The defaults are the recipe chosen in our trials; Table 3 is the preset ``paper``.
    """

    gamma: float = 0.9
    """Discount factor in [0, 1]; 0 is the target of ST-GRPO."""
    discount_unit: DiscountUnit = "agent_turn"
    """What one power of gamma stands for."""
    estimator: Estimator = "monte_carlo"
    """What Q is regressed on. `monte_carlo`: the return, as in the paper; `sarsa`: the reward, or
    gamma times Q of the logged next action; `fitted_q`: gamma times the mean Q of `td_responses`
    that the policy draws at the next state, so that anybody's conversations will do. The last two
    need a gamma above 0, and pay for less variance with the errors of the Q that they lean on."""
    td_iterations: int = 10
    """Of `sarsa` and `fitted_q`: regressions after the first, which is that of `monte_carlo`; each
    is `epochs` passes, from scratch, on targets by the one before. As many as a conversation has
    agent turns let every target lead back to a reward; 1 or more."""
    td_responses: int = 4
    """Of `fitted_q`: responses drawn at each next state, 1 or more; drawn once, before the first
    regression, which is what this estimator costs."""
    backbone: BackboneKind = "shared"
    """Which frozen weights give the features."""
    pooling: Pooling = "final_and_mean"
    """Which hidden states the head reads."""
    numbers: int = 0
    """How many figures of each message the head reads from the text beside the hidden states, where
    small models blur them: of the response, of what it answers and of the agent's own message
    before the last so many, of the instructions the first four times as many; 0: none, as in the
    paper. With 8 the best of eight answers of `nano` by Q gained .41 in place of .28 in Deal or No
    Deal; policies trained by such a Q have not been shown to be better."""
    hidden: int = 256
    """Width of the head's hidden layer."""
    heads: int = 8
    """Independently initialised heads whose mean is the score; the paper has one."""
    dropout: float = 0.1
    """Dropout probability after the ReLU, in [0, 1); off when scoring."""
    standardise: bool = True
    """Whether each feature is brought to mean 0 and spread 1 over the fitted rows first."""
    clamp: bool = True
    """Whether scores are kept within the range of the fitted returns. It comes last, after the mean
    over the heads and `pessimism`: heads that are bounded one by one agree at the bound exactly
    where they extrapolate, and their spread would no longer warn."""
    pessimism: float = 0.0
    """Standard deviations over the heads (n - 1 in the denominator) that are taken off their mean:
    a lower confidence bound, low where the heads disagree. Above 0 it needs 2 heads or more. The
    health report is about the mean."""
    learning_rate: float = 3e-4
    """Step size of AdamW."""
    weight_decay: float = 0.01
    """Decoupled weight decay of AdamW."""
    epochs: int = 8
    """Passes over the rows."""
    batch_size: int = 32
    """Rows of a gradient step."""
    tune: TuneConfig | None = None
    """Whether a copy of the backbone is tuned with the head, by an adapter of its own: a critic
    that can tell apart what the frozen features don't, at the cost of a second copy of the weights
    and of backward passes; null: the backbone stays frozen, as in the paper."""
    holdout_fraction: float = 0.2
    """Share of the conversations kept for the health report, in [0, 0.9]; 0: no report."""
    split_by: SplitUnit = "conversation"
    """Unit of the held-out split; copies of a conversation stay together in either case."""
    refit_on_all: bool = True
    """Whether the returned head is fitted again on all rows after the report."""
    judge_fraction: float = 0.25
    """Share of the round's conversations (in units of `split_by`, chosen by a hash of what was
    said) whose returns this Q never sees, in [0, 0.9]: a second Q, the judge, is fitted on them
    alone. It trains nothing; the verdict on the update is its use. 0: no judge. Q gets all, and
    the verdict says why, where fewer than 8 with a reward would be set aside, or where what remains
    would have one outcome only."""
    off_policy: OffPolicy = "refuse"
    """Explored conversations: `refuse` them; `drop` the rows whose target an explored turn can have
    changed, counted in the health report (with `fitted_q` none can); or `weight` what a persona
    said by how much likelier the policy is to say it, under the cap and the least effective sample
    of `pool_max_weight` and `pool_min_ess`, which needs its log-probs, sampled without a nucleus.
    Whatever can't be weighed is dropped: docs/explanation/off-policy.md."""
    pool_rounds: int = 0
    """How many earlier rounds of the run are fitted on too, the latest ones, each row weighed by
    how much likelier this round's policy is to say what was said after it (with `sarsa`: right
    after it; with `fitted_q` unweighed); 0: none. Above 0 it needs logs with the log-probs of every
    turn, sampled without a nucleus, but not with gamma 0 or `fitted_q`.
    States to improve at stay those of the round. Q of `nano` in Ultimatum from 60 conversations:
    correlation with fresh returns 0.19 alone, 0.29 with two earlier rounds of 240."""
    pool_max_weight: float = 10.0
    """Cap on such a weight, 1 or more; a row of the round itself has 1."""
    pool_min_ess: float = 0.1
    """Rows of an earlier round at one turn are left out if their effective sample size, before the
    cap, is a smaller share of their number than this, in [0, 1]."""
    shuffle_returns: bool = False
    """Negative control: returns are permuted among the fitted rows, so Q learns nothing true."""
    max_batch_tokens: int = 8192
    """Padded tokens of one forward pass over conversations; bounds the memory. With `tune`, a
    gradient step over more is taken in parts."""
    seed: int = 42
    """Root of the split, the initial weights, the row order and the dropout."""

    def __post_init__(self) -> None:
        """Refuse impossible values.

        Raises:
            ConfigError: with one line for each mistake.
        """
        mistakes = [*broken(self, **_RULES), *(text for ok, text in _together(self) if not ok)]
        if mistakes:
            raise ConfigError("\n".join(mistakes))

    @property
    def passes(self) -> int:
        """Passes over the rows for one fit, those of tuning included."""
        return self.epochs * self.regressions + (self.tune.epochs if self.tune is not None else 0)

    @property
    def regressions(self) -> int:
        """Regressions of one fit."""
        return 1 if self.estimator == "monte_carlo" else 1 + self.td_iterations

    @property
    def weighs(self) -> bool:
        """Whether targets need importance weights where another policy spoke."""
        return self.gamma > 0 and self.estimator != "fitted_q"


_COUNT = within("[1, inf)")

_RULES = {
    "gamma": within("[0, 1]"),
    "td_iterations": _COUNT,
    "td_responses": _COUNT,
    "numbers": within("[0, 1000]", zero="none"),
    "hidden": _COUNT,
    "heads": _COUNT,
    "dropout": within("[0, 1)"),
    "pessimism": within("[0, inf)"),
    "learning_rate": within("(0, inf)"),
    "weight_decay": within("[0, inf)"),
    "epochs": _COUNT,
    "batch_size": _COUNT,
    "holdout_fraction": within("[0, 0.9]"),
    "judge_fraction": within("[0, 0.9]"),
    "pool_rounds": within("[0, inf)", zero="none"),
    "pool_max_weight": within("[1, inf)"),
    "pool_min_ess": within("[0, 1]"),
    "max_batch_tokens": _COUNT,
    **{
        name: one_of(get_args(kind))
        for name, kind in get_type_hints(QConfig).items()
        if get_origin(kind) is Literal
    },
}


def _together(config: QConfig) -> list[tuple[bool, str]]:
    """Rules about several settings at once."""
    return [
        (
            config.gamma > 0 or config.discount_unit != "message",
            "gamma is 0 with discount_unit message, which credits only what the agent itself "
            "closes; use agent_turn",
        ),
        (
            config.gamma > 0 or config.estimator == "monte_carlo",
            f"estimator is {config.estimator!r} with gamma 0, where nothing follows that a target "
            "could lean on; accepted: monte_carlo, or a gamma above 0",
        ),
        (
            config.off_policy != "weight" or config.estimator != "fitted_q",
            "off_policy is 'weight' with estimator 'fitted_q', whose targets the policy itself "
            "draws: there is nothing to weigh; accepted: drop, which drops nothing then",
        ),
        (
            config.tune is None or config.backbone == "shared",
            f"tune is given with backbone {config.backbone!r}; accepted with it: shared",
        ),
        (
            config.pessimism <= 0 or config.heads >= 2,
            f"pessimism is {config.pessimism} with heads {config.heads}; one head has no spread: "
            "use 2 heads or more, or pessimism 0",
        ),
    ]
