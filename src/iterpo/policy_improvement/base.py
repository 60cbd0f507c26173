"""What a policy improvement is asked for and gives back: any reward in, a better adapter out.

Observation 3.1 of the paper: a policy that raises E[Q(s, a)] at every logged state is a better
policy in the conversation, so improving is ordinary single-turn RL. An operator takes *any*
``Reward`` and never learns where it comes from; ``single_turn.improve`` runs it. Nothing here
imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iterpo.domain import Sampling
from iterpo.domain.rules import broken, one_of, within
from iterpo.models.lora import LoraSpec
from iterpo.policy_improvement.ppo_options import PpoOptions
from iterpo.policy_improvement.watch import DriftLimits

if TYPE_CHECKING:
    from iterpo.models.backbone import Backbone

__all__ = [
    "OPERATORS",
    "OTHER_ENGINES",
    "TRACKERS",
    "ImproveConfig",
    "ImproveResult",
    "Learner",
    "Progress",
    "Record",
    "Training",
]

OPERATORS: dict[str, str] = {
    "grpo": "iterpo.policy_improvement.grpo:Grpo",
    "ppo": "iterpo.policy_improvement.ppo:Ppo",
    "rloo": "iterpo.policy_improvement.rloo:Rloo",
}
"""Name -> ``module:class`` of its ``Objective``; a further operator is one file and one line
here."""

OTHER_ENGINES = ("use_vllm", "use_transformers_continuous_batching")
"""Fields of ``grpo`` that have TRL draw the candidates."""

TRACKERS = ("none", "trackio", "tensorboard", "wandb", "mlflow")
"""What ``report_to`` accepts."""

Record = Callable[[int, Mapping[str, float]], None]
"""Takes (step, metrics), steps from 1. After a resume a step may come again, with equal values."""

Progress = Callable[[int, int, Mapping[str, float]], None]
"""Takes (steps done, steps planned, metrics of the latest step)."""


@dataclass(frozen=True, slots=True)
class ImproveConfig:
    """How a policy is improved.

    The defaults are the recipe chosen in our trials; the paper's is the preset ``paper``.
    """

    operator: str = "grpo"
    """What candidates are trained on: ``grpo``, advantages within the group in units of its
    deviation; ``rloo``, REINFORCE with the mean of the others as baseline, in reward units;
    ``ppo``, advantages by token from a value head, with several updates per batch."""
    lora: LoraSpec = field(default_factory=LoraSpec)
    """Adapter to train. A policy that has one is trained on from it, and must have this shape."""
    sampling: Sampling = field(default_factory=Sampling)
    """How candidate responses are drawn. T = 1 keeps later rounds explorable."""
    prompts_per_step: int = 16
    """States per optimizer step; each gets ``group_size`` candidates."""
    group_size: int = 8
    """Candidates per state (G); at least 2, with ``ppo`` at least 1."""
    epochs: int = 1
    """Passes over the states, where ``steps`` is not given."""
    steps: int | None = None
    """Optimizer steps; None: as many as ``epochs`` needs."""
    learning_rate: float = 1e-5
    """Peak learning rate."""
    beta: float = 0.0
    """Weight of the KL term to the policy that collected the batch, in the units of the advantages:
    deviations of the reward, with ``rloo`` the reward itself. With ``kl_target`` it is the weight
    at the target, where 0 means 1; without, it stays the same, and 0 switches the term off.
    With ``candidate_temperatures`` the term is the mean over the candidates at the policy's own
    one."""
    kl_target: float | None = 2.0
    """KL to the round's policy, in nats per response, at which the phase settles: the weight of the
    KL term is then ``beta`` (1 if that is 0) at the target, next to nothing well below and a few
    hundred times as much at twice the target. None: the weight stays ``beta``."""
    kl_stop: float | None = None
    """KL to the round's policy, in nats per response, that ends the phase. The result is the latest
    policy that was measured within it; the one after the last step is measured too. None: never. It
    must be above ``kl_target``, where there is one."""
    kl_share: float | None = None
    """Share of a step's states, at least one, at whose candidates KL is measured, at two forward
    passes each. None: 1/2 where ``kl_target`` or ``kl_stop`` depend on it, else 1/8. 0: never."""
    entropy_bonus: float = 0.0
    """Weight of the policy's entropy in the objective, in the units of ``beta``: the exact entropy
    at each token in nats, at the sampling temperature, mean over all tokens of the step's responses
    (those at the policy's own temperature). Tied groups count too: a policy without entropy makes
    nothing else."""
    candidate_temperatures: tuple[float, ...] = ()
    """Temperatures that candidates are drawn at, each candidate's drawn uniformly from these, e.g.
    (1.0, 1.0, 1.3, 1.6): rare responses are then tried. Advantages are weighted by the ratio of the
    policy to that mixture, which keeps the gradient that of the policy at ``sampling.temperature``.
    That one must be among them: its share p bounds the ratio by 1 / p. Empty: that one alone."""
    std_floor: float = 0.05
    """Floor under the standard deviation that advantages are divided by, in reward units; keeps the
    noise of a learned reward from being blown up to unit size. ``rloo`` divides by none."""
    std_epsilon: float = 1e-4
    """Added to that standard deviation (TRL's convention)."""
    tie_tolerance: float = 1e-6
    """A group whose scores spread (max - min) no further than this counts as tied; with ``ppo`` all
    groups are, where those of the whole batch do."""
    micro_batch: int = 32
    """Most sequences per forward pass; changes memory, never the result."""
    drop_old_turns: bool = False
    """Shorten prompts that don't fit by leaving out whole oldest turns; else they are an error."""
    checkpoint_every: int = 0
    """Steps between resumable checkpoints; 0: none."""
    clipped_ratio_alarm: float = 0.5
    """Warn if a larger share of the candidates is cut at ``max_new_tokens``."""
    flat_steps_alarm: int = 3
    """Warn after so many steps in a row in which no group had any spread."""
    drift: DriftLimits = field(default_factory=DriftLimits)
    """When the monitors of a step have left those of the first step so far that it is said."""
    report_to: str = "none"
    """Experiment tracker that gets the metrics as well; see ``TRACKERS``."""
    seed: int = 0
    """Root of every random draw of the phase."""
    grpo: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the trainer, ``trl.GRPOConfig``'s, passed on verbatim; unknown ones are
    refused, and with another operator those of GRPO's own objective too."""
    ppo: PpoOptions = field(default_factory=PpoOptions)
    """Further settings of the operator ``ppo``; refused with the others."""

    @property
    def updates_per_batch(self) -> int:
        """Optimizer steps that each batch of candidates serves."""
        if self.operator == "ppo":
            return self.ppo.updates
        return int(self.grpo.get("num_iterations") or 1)

    def mistakes(self) -> list[str]:
        """Everything wrong with these values, without importing torch; empty if all is well."""
        return [
            *broken(self, **_RULES),
            *self._operator_mistakes(),
            *self._guard_mistakes(),
            *self._sampling_mistakes(),
            *self._temperature_mistakes(),
            *self._lora_mistakes(),
            *(f"drift.{mistake}" for mistake in self.drift.mistakes()),
        ]

    def _operator_mistakes(self) -> list[str]:
        if self.operator == "ppo":
            found = [f"ppo.{mistake}" for mistake in self.ppo.mistakes()]
            if self.group_size < 1 or self.group_size * self.prompts_per_step < 2:
                found.append(
                    f"group_size is {self.group_size!r} with prompts_per_step "
                    f"{self.prompts_per_step!r}; it must be >= 1, and a step needs 2 candidates"
                )
            return found
        found = []
        if self.group_size < 2:
            found.append(
                f"group_size is {self.group_size!r}; it must be >= 2 (one candidate has no "
                "advantage; with operator ppo it has one)"
            )
        if self.ppo != PpoOptions():
            found.append(
                f"ppo is {self.ppo}, which acts with operator ppo alone; this one is "
                f"{self.operator!r}: remove it"
            )
        return found

    def _guard_mistakes(self) -> list[str]:
        found = []
        if None not in (self.kl_target, self.kl_stop) and self.kl_stop <= self.kl_target:  # type: ignore[operator]
            found.append(
                f"kl_stop is {self.kl_stop!r} with kl_target {self.kl_target!r}; it must be above "
                "the target, or the phase ends before it gets there; kl_target null leaves the "
                "stop alone"
            )
        if self.kl_share == 0 and (self.kl_target is not None or self.kl_stop is not None):
            found.append(
                f"kl_share is 0, but kl_target ({self.kl_target!r}) and kl_stop "
                f"({self.kl_stop!r}) need KL to be measured; give a share, or set both to null"
            )
        return found

    def _temperature_mistakes(self) -> list[str]:
        given, own = self.candidate_temperatures, self.sampling
        if not given:
            return []
        found = []
        if own.temperature not in given or not all(t > 0 for t in given):
            found.append(
                f"candidate_temperatures is {given!r}; all must be > 0, and sampling.temperature "
                f"({own.temperature!r}) must be among them, or the correction has no bound"
            )
        if own.reshaped:
            found.append(
                "candidate_temperatures corrects for how candidates were drawn, which top_p, top_k "
                "and repetition_penalty make impossible; set sampling to top_p 1, top_k 0, "
                "repetition_penalty 1"
            )
        if any(self.grpo.get(engine) for engine in OTHER_ENGINES):
            found.append(f"candidate_temperatures can't be used with {' or '.join(OTHER_ENGINES)}")
        return found

    def _sampling_mistakes(self) -> list[str]:
        drawn = self.sampling
        found = [f"sampling.{mistake}" for mistake in drawn.mistakes()]
        if drawn.temperature == 0:
            found.append(
                "sampling.temperature: given 0; accepted: above 0, since greedy candidates of one "
                "state are all the same"
            )
        if drawn.reshaped and self.updates_per_batch > 1:
            name = "ppo.updates" if self.operator == "ppo" else "grpo.num_iterations"
            found.append(
                f"{name} > 1 reuses samples through a probability ratio, which top_p, "
                f"top_k and repetition_penalty bias; use {name} 1, or set sampling to "
                "top_p 1, top_k 0, repetition_penalty 1"
            )
        return found

    def _lora_mistakes(self) -> list[str]:
        found = []
        if self.lora.r < 1 or self.lora.alpha < 1:
            found.append(f"lora is {self.lora}; r and alpha must be >= 1")
        if self.lora.dropout != 0:
            found.append(
                f"lora.dropout is {self.lora.dropout!r}; {self.operator} needs 0, since dropout "
                "makes the log-probabilities of one response differ from call to call"
            )
        return found


_COUNT = within("[1, inf)")

_RULES = {
    "operator": one_of(tuple(OPERATORS)),
    "prompts_per_step": _COUNT,
    "epochs": _COUNT,
    "steps": within("[1, inf)", null="by epochs"),
    "learning_rate": within("(0, inf)"),
    "beta": within("[0, inf)"),
    "kl_target": within("(0, inf)", null="none"),
    "kl_stop": within("(0, inf)", null="never"),
    "kl_share": within("[0, 1]", null=""),
    "entropy_bonus": within("[0, inf)"),
    "std_floor": within("[0, inf)"),
    "std_epsilon": within("[0, inf)"),
    "tie_tolerance": within("[0, inf)"),
    "micro_batch": _COUNT,
    "checkpoint_every": within("[0, inf)", zero="none"),
    "clipped_ratio_alarm": within("(0, 1]"),
    "flat_steps_alarm": _COUNT,
    "report_to": one_of(TRACKERS),
}


@dataclass(frozen=True, slots=True)
class ImproveResult:
    """An improved policy, still in memory."""

    model: Any
    """The trained ``PeftModel``, in evaluation mode; ``models.checkpoints`` stores it."""
    adapter_name: str
    """Name of the trained adapter inside ``model``."""
    steps: int
    """Optimizer steps in the adapter: those planned, or fewer where ``kl_stop`` ended the phase."""
    counts: Mapping[str, int]
    """``states``, ``shortened_prompts``, ``responses``, ``unscored``, ``clipped``, ``groups``,
    ``tied_groups``, ``alarms``; ``kl_stopped`` (0 or 1), and for each drift alarm that was raised
    ``drift_<kind>``, the number of steps at which it held."""
    seconds: Mapping[str, float]
    """Time by stage of this call: ``sampling``, ``reward``, ``drift``, ``total``."""
    drift: Mapping[str, float] = field(default_factory=dict)
    """The drift monitors of the adapter as it is given back, on responses drawn for that:
    ``kl_response``, ``kl``, ``entropy``, ``completion_tokens``, ``repeated_ngrams``, ``box_rate``,
    ``miscopied``; empty where ``kl_share`` is 0."""


@dataclass(frozen=True, slots=True)
class Training:
    """What every training of a policy is given, whatever it learns from."""

    backbone: Backbone
    """The policy that collected the batch; its weights are trained in place."""
    lora: LoraSpec
    """Adapter to train. A policy that has one is trained on from it, and must have this shape."""
    seed: int
    """Root of every random draw."""
    workdir: Path
    """Folder for checkpoints; a restart with equal inputs goes on from the latest."""
    record: Record | None = None
    """Receives the metrics of every step."""
    progress: Progress | None = None
    """Receives how far the work is."""
    checkpoint_every: int = 0
    """Steps between resumable checkpoints; 0: none."""
    step_factor: float = 1.0
    """Factor on the learning rate: below 1 where earlier updates from this policy were undone."""


Learner = Callable[[Training], ImproveResult]
"""Trains a policy by a loss of its own, on data that it holds already."""
