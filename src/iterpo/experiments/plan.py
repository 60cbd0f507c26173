"""A plan: everything that a run depends on, as one frozen value with an identity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from iterpo.agents.endpoint import EndpointConfig
from iterpo.agents.optimist import OptimismConfig
from iterpo.agents.persona import PersonaConfig
from iterpo.config import dump, override, parse, read_yaml
from iterpo.domain import Sampling, derive
from iterpo.domain.rules import broken, refuse, within
from iterpo.errors import ConfigError
from iterpo.experiments.exploration import refusing_method, unusable_exploration
from iterpo.experiments.identity import identity
from iterpo.experiments.roll_back import RollBackPlan
from iterpo.methods.base import PLUGINS as METHODS
from iterpo.methods.base import wrong_options
from iterpo.methods.verdict import VerdictConfig
from iterpo.models.engines import SamplerName, VllmConfig
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_improvement.base import ImproveConfig

__all__ = [
    "CollectPlan",
    "EnvironmentPlan",
    "HeldoutPlan",
    "MethodPlan",
    "PartnerPlan",
    "Plan",
    "PolicyPlan",
    "load_plan",
    "plan_values",
    "preset_names",
]

_FIT_Q = ("iterpo", "st_grpo")
_TAKEN_BY_PARTNER = {
    "scripted": ("seed",),
    "local": ("model", "dtype", "device", "sampling"),
    "endpoint": ("endpoint", "sampling"),
}
_NEEDED_BY_PARTNER = {
    "local": ("model", "a model, such as nano"),
    "endpoint": ("endpoint", "a mapping with base_url and model"),
}


@dataclass(frozen=True, slots=True)
class EnvironmentPlan:
    """Which game is played."""

    name: str = "ultimatum"
    """Registry name; `iterpo envs` lists them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the game, e.g. `prompt_style: compact`; `iterpo envs show NAME` lists them."""


@dataclass(frozen=True, slots=True)
class PartnerPlan:
    """Who sits on the other side, the paper's pi_env."""

    kind: Literal["scripted", "local", "endpoint"] = "scripted"
    """`scripted`: the game's rule-based partner, for which J* is known; `local`: a model in this
    process; `endpoint`: a model on a server. Only with the first one regret is reported."""
    seed: int = 0
    """Of `scripted`: seed of the partners' private draws."""
    model: str | None = None
    """Of `local`: embedded model, folder of a model or of a policy, or hub id."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of `local`: precision of the weights."""
    device: str = "auto"
    """Of `local`: `auto`, `cpu`, `cuda` or `cuda:N`."""
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.7, top_p=0.9))
    """Of `local` and `endpoint`: how the partner samples."""
    endpoint: EndpointConfig | None = None
    """Of `endpoint`: the server, e.g. `{base_url: "http://localhost:8000/v1", model: qwen}`."""

    def __post_init__(self) -> None:
        """Refuse settings that this kind of partner lacks, or would never look at."""
        found = broken(self, seed=_NATURAL)
        found += _unusable_sampling(self.sampling)
        needed, what = _NEEDED_BY_PARTNER.get(self.kind, ("kind", ""))
        if getattr(self, needed) is None:
            found.append(f"{needed}: given null with kind {self.kind}; accepted: {what}")
        takes = _TAKEN_BY_PARTNER[self.kind]
        for f in fields(self):
            default = f.default if f.default_factory is MISSING else f.default_factory()
            if f.name not in ("kind", *takes) and getattr(self, f.name) != default:
                found.append(
                    f"{f.name}: given with kind {self.kind}, which does not look at it; accepted: "
                    f"{', '.join(takes)}"
                )
        if found:
            raise ConfigError("\n".join(found))


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """pi_0: the policy that the first round deploys."""

    model: str = "nano"
    """Embedded default, local folder or hub id; `iterpo models` lists the embedded ones."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the weights; `auto` lets the model layer choose for the device."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`."""
    threads: int | None = None
    """CPU threads of a phase; null leaves the default. Changes rounding, hence results."""
    sampler: SamplerName = "local"
    """What draws the conversations of a round: `local`, our own sampler; `vllm`, which needs the
    extra of that name and a GPU, and draws other numbers from the same seeds; `auto`: vLLM where
    both are there and it takes the dtype and the temperature, else `local`. The improvement has its
    own switch, `improve.grpo.use_vllm`."""
    vllm: VllmConfig = field(default_factory=VllmConfig)
    """What vLLM gets of the machine, where it draws the conversations."""

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        refuse(self, threads=within("[1, 1024]", null=""))


@dataclass(frozen=True, slots=True)
class MethodPlan:
    """What turns logged conversations into a better policy."""

    name: str = "iterpo"
    """Registry name; `iterpo methods` lists them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of a method that has its own; docs/reference/methods.md lists them."""

    def __post_init__(self) -> None:
        """Refuse names that are not registered, and options that the method does not take."""
        if unknown := METHODS.unknown(self.name):
            raise ConfigError(f"name: {unknown}")
        # A plug-in may load what it likes: commands and preflight make it, a mere plan does not.
        if self.name in METHODS.built_in and (found := wrong_options(self.name, self.options)):
            raise ConfigError("\n".join(found))


@dataclass(frozen=True, slots=True)
class CollectPlan:
    """Stage 1 of a round: what pi_i is deployed on."""

    scenarios: int = 100
    """Training kernels a round (paper, Table 2)."""
    per_scenario: int = 4
    """Conversations per kernel (K in Table 2)."""
    data_seed: int = 42
    """Seed that chooses the kernels (Table 2)."""
    kernels: Literal["fixed", "fresh"] = "fixed"
    """`fixed`: the same kernels in every round, as in the paper; `fresh`: new ones each round."""
    sampling: Sampling = field(default_factory=Sampling)
    """How the policy samples; all that is not given here is neutral. Temperature 1 without a
    nucleus keeps later rounds explorable, and lets off-policy estimates weigh what was said."""
    concurrency: int = 128
    """Conversations that advance together and share generate calls; part of the identity, since
    batching changes rounding."""
    attempts: int = 2
    """Tries of a conversation that fails for reasons outside it."""
    max_failed: float = 0.2
    """Largest share of a batch that may fail for reasons outside it (a server, say). With more, the
    round stops; resuming plays only the blocks with failures again."""
    explore: PersonaConfig | None = None
    """Personas that the agent takes on in a share of the training conversations (section 3.4),
    never on held-out kernels or after the last update; null: none. Needs `q.off_policy` other than
    `refuse`."""
    optimism: OptimismConfig | None = None
    """In a share of the training conversations one message is the draft of several that the last
    round's Q finds most promising, uncertainty included; null: none. Needs `q.off_policy` as
    `explore` does; acts from round 1 up to the last update, and holds a second copy of the weights
    there."""

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        one = within("[1, inf)")
        found = broken(
            self, scenarios=one, per_scenario=one, data_seed=_NATURAL, concurrency=one,
            attempts=one,
            max_failed=within("[0, 1)"),
        )  # fmt: skip
        found += _unusable_sampling(self.sampling)
        if found:
            raise ConfigError("\n".join(found))


@dataclass(frozen=True, slots=True)
class HeldoutPlan:
    """What every policy is measured on; never trained on."""

    scenarios: int = 100
    """Held-out kernels."""
    per_scenario: int = 4
    """Conversations per kernel."""

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        one = within("[1, inf)")
        refuse(self, scenarios=one, per_scenario=one)


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a run depends on (Algorithm 1); Tables 2 and 3 are the preset ``paper``."""

    name: str = "run"
    """What the run is called; names its default folder, changes no result."""
    seed: int = 0
    """Root of all random draws of the run."""
    rounds: int = 4
    """Rounds of collect, fit Q, improve (Table 3)."""
    environment: EnvironmentPlan = field(default_factory=EnvironmentPlan)
    """The game."""
    partner: PartnerPlan = field(default_factory=PartnerPlan)
    """The other side."""
    policy: PolicyPlan = field(default_factory=PolicyPlan)
    """The initial policy."""
    method: MethodPlan = field(default_factory=MethodPlan)
    """The method."""
    collect: CollectPlan = field(default_factory=CollectPlan)
    """Conversations of a round."""
    q: QConfig = field(default_factory=QConfig)
    """Policy evaluation (Observation 3.5)."""
    improve: ImproveConfig = field(default_factory=ImproveConfig)
    """Policy improvement (Observation 3.1)."""
    heldout: HeldoutPlan = field(default_factory=HeldoutPlan)
    """Measurement."""
    verdict: VerdictConfig = field(default_factory=VerdictConfig)
    """Evidence on every update, and what follows from it."""
    roll_back: RollBackPlan = field(default_factory=RollBackPlan)
    """Starting again from the best policy when the collected J falls."""
    stop_when_q_converged: float | None = None
    """Stop before the last round once Q changes by less than this between rounds; null: never."""

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        found = broken(
            self,
            seed=_NATURAL,
            rounds=within("[1, inf)"),
            name=(
                lambda v: bool(v) and v not in (".", "..") and not set(v) & set("/\\\0"),
                "text without slashes, since it names a folder",
            ),
            stop_when_q_converged=(
                lambda v: v is None or (v > 0 and self.rounds > 1),
                "null, or above 0 with at least 2 rounds to compare",
            ),
        )
        found += [f"improve.{mistake}" for mistake in self.improve.mistakes()]
        found += self._too_few_to_split()
        found += self._unusable_pooling()
        found += self._without_q()
        collect = self.collect
        found += unusable_exploration(
            collect.explore, collect.optimism, collect.sampling, self.q, self.rounds
        )
        if collect.explore is not None and self.method.name in METHODS.built_in:
            found += refusing_method(self.method.name, self.method.options)
        found += self._unusable_myopia()
        if found:
            raise ConfigError("\n".join(found))

    def _too_few_to_split(self) -> list[str]:
        units = self.collect.scenarios
        if self.q.split_by == "conversation":
            units *= self.collect.per_scenario
        if self.q.holdout_fraction == 0 or units >= 2:
            return []
        return [
            f"q.holdout_fraction: given {self.q.holdout_fraction} of {units} {self.q.split_by}; "
            "accepted: 0, or at least 2 of them a round (collect.scenarios, collect.per_scenario)"
        ]

    def _unusable_myopia(self) -> list[str]:
        if self.method.name != "st_grpo":
            return []
        found = []
        if self.q.discount_unit == "message":
            found.append(
                "q.discount_unit: given 'message'; accepted with st_grpo: agent_turn, since at "
                "gamma 0 a message unit credits only what the agent itself closes"
            )
        if self.q.estimator != "monte_carlo":
            found.append(
                f"q.estimator: given {self.q.estimator!r}; accepted with st_grpo: monte_carlo, "
                "since at gamma 0 nothing follows that a target could lean on"
            )
        return found

    def _unusable_pooling(self) -> list[str]:
        sampling = self.collect.sampling
        if self.q.pool_rounds and self.rounds == 1:
            return ["q.pool_rounds: given with rounds 1; accepted: 0, or rounds of 2 or more"]
        unweighed = not self.q.weighs or self.method.name == "st_grpo"
        if not self.q.pool_rounds or unweighed or (sampling.temperature and not sampling.reshaped):
            return []
        return [
            f"q.pool_rounds: given {self.q.pool_rounds} with collect.sampling that never says some "
            "responses, which no weight brings back; accepted: 0, or a temperature above 0 with "
            "top_p 1, top_k 0 and repetition_penalty 1"
        ]

    def _without_q(self) -> list[str]:
        if self.method.name in _FIT_Q or self.method.name not in METHODS.built_in:
            return []
        needs = (
            ("stop_when_q_converged", self.stop_when_q_converged, "null"),
            ("collect.optimism", self.collect.optimism, "null"),
            ("q.pool_rounds", self.q.pool_rounds or None, "0"),
        )
        return [
            f"{name}: given with method {self.method.name}, which fits no Q; accepted: {none}"
            for name, value, none in needs
            if value is not None
        ]

    def operators_of_round(self, i: int) -> tuple[QConfig, ImproveConfig]:
        """Settings of both operators in round i, with seeds that follow from the run's seed."""
        return (
            replace(self.q, seed=self._seed("q", i, self.q.seed)),
            replace(self.improve, seed=self._seed("improve", i, self.improve.seed)),
        )

    def _seed(self, stage: str, i: int, own: int) -> int:
        # Trainers hand seeds on to numpy, which takes 32 bits.
        return derive(self.seed, stage, i, own) % 2**31

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, defaults included; ``load_plan`` reads them back."""
        values: dict[str, Any] = dump(self)
        return values

    def identity(self) -> str:
        """SHA-256 over everything that changes results: equal exactly for equal experiments."""
        return identity(self.as_dict())


def preset_names() -> tuple[str, ...]:
    """Names of the plans that come with the package."""
    folder = resources.files("iterpo.experiments") / "presets"
    return tuple(
        sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))
    )


def load_plan(
    source: str | Path,
    overrides: Sequence[str] = (),
    check: Callable[[Mapping[str, Any]], Sequence[str]] = lambda _: (),
) -> Plan:
    """The plan of a YAML file or a preset, with ``a.b=c`` settings applied on top.

    Args:
        source: Path of a file, or the name of a preset (``demo``, ``paper``, ``smoke``). A file
            of that very name wins.
        overrides: Settings in order of precedence, lowest first.
        check: Gives further mistakes of the plain values, to be told with the rest.

    Raises:
        ConfigError: with all mistakes of the plan at once.
    """
    named = f"the plan {source}" + (f" with {', '.join(overrides)}" if overrides else "")
    values = override(plan_values(source), overrides)
    return parse(Plan, values, named, check(values))


def plan_values(source: str | Path) -> dict[str, Any]:
    """What a YAML file or a preset says, unchecked.

    Raises:
        ConfigError: if there is neither, or it is no YAML.
    """
    path = Path(source)
    if path.is_file():
        return read_yaml(path)
    known = preset_names()
    if str(source) not in known:
        raise ConfigError(
            f"no plan at {str(source)!r}: give a YAML file, the folder of a run, or one of the "
            f"presets {', '.join(known)}."
        )
    with resources.as_file(resources.files("iterpo.experiments") / "presets") as folder:
        return read_yaml(folder / f"{source}.yaml")


_NATURAL = within("[0, inf)")


def _unusable_sampling(sampling: Sampling) -> list[str]:
    return [f"sampling.{mistake}" for mistake in sampling.mistakes()]
