"""Speakers: who sits where, as frozen descriptions that become the two sides of a table.

A description holds no weights, no connection and no key. ``seat`` makes agents of two of them;
weights that both sides need are loaded once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, cast, get_args

from iterpo.agents.base import AgentFactory
from iterpo.agents.endpoint import Endpoint, EndpointConfig
from iterpo.agents.persona import Exploring, PersonaConfig
from iterpo.agents.scripted import Bargaining, ScriptedPartner, bargaining
from iterpo.agents.wording import Style
from iterpo.agents.yardsticks import FirstCounter, Oracle, RandomOffer
from iterpo.collect import JStar, Table
from iterpo.config.secrets import read_secret
from iterpo.domain import PolicyRef, Sampling
from iterpo.environments.base import Environment
from iterpo.errors import ConfigError, UnknownNameError
from iterpo.experiments.plan import PartnerPlan
from iterpo.models.checkpoints import load_policy
from iterpo.models.engines import SamplerName, VllmConfig, vllm_version

if TYPE_CHECKING:  # whoever seats no local model needs no torch
    from iterpo.agents.local import LocalPolicy
    from iterpo.models.backbone import Backbone
    from iterpo.models.vllm_sampler import VllmSampler

__all__ = [
    "SPECS",
    "Local",
    "Scripted",
    "Seating",
    "Served",
    "Speaker",
    "Yardstick",
    "YardstickName",
    "check_partner",
    "check_seats",
    "is_nano",
    "partner_of",
    "prompt_style",
    "read_speaker",
    "seat",
    "served",
    "speaker_name",
]

YardstickName = Literal["oracle", "first-counter", "random-offer"]
"""Fixed agents, by the names that people type."""

SPECS = (
    "scripted (the game's rule-based partner), oracle, first-counter or random-offer (fixed "
    "agents), an embedded model (nano, smollm2-135m), the folder of a model or of a policy, a hub "
    "id such as Qwen/Qwen2.5-0.5B-Instruct, or a served model as URL#MODEL, such as "
    "http://localhost:8000/v1#qwen"
)
"""What ``read_speaker`` accepts, for messages."""


@dataclass(frozen=True, slots=True)
class Scripted:
    """The game's rule-based partner, for which J* is known; it can't be the agent."""

    seed: int = 0
    """Seed of the partners' private draws."""


@dataclass(frozen=True, slots=True)
class Yardstick:
    """A fixed agent to compare with; it can't be the partner."""

    name: YardstickName
    """`oracle` attains J* against the scripted partner, `first-counter` accepts the first offer
    that is boxed, `random-offer` draws its terms."""


@dataclass(frozen=True, slots=True)
class Local:
    """A policy in this process."""

    policy: PolicyRef
    """Which weights."""
    sampling: Sampling = field(default_factory=Sampling)
    """Effective settings."""
    dtype: str = "auto"
    """Precision of the weights, as in ``models.backbone.load``."""
    device: str = "auto"
    """Where they lie."""
    sampler: SamplerName = "local"
    """What draws its messages. Sides with the same weights share the engine of the agent."""
    vllm: VllmConfig = field(default_factory=VllmConfig)
    """What vLLM gets, where it draws."""


@dataclass(frozen=True, slots=True)
class Served:
    """A model behind an OpenAI-compatible server."""

    endpoint: EndpointConfig
    """Where it is, and how it is called."""
    sampling: Sampling = field(default_factory=Sampling)
    """Settings that the server is asked for."""


Speaker: TypeAlias = Scripted | Yardstick | Local | Served
"""Whoever can sit at a table."""


@dataclass(frozen=True, slots=True)
class Seating:
    """A table with both sides taken, and what is known about it."""

    table: Table
    """Environment and agents."""
    round: int
    """Round i of the agent's policy; 0 for an agent that has none."""
    j_star: JStar | None
    """Best attainable return of a scenario by discount unit; None where the partner is not the
    scripted one: no bound is known then, hence no regret."""
    engines: tuple[VllmSampler, ...] = ()
    """Engines that were started for this table."""

    @property
    def sampler(self) -> str:
        """What draws the responses of local policies: ``local``, or vLLM with its release."""
        return f"vllm {vllm_version()}" if self.engines else "local"

    def close(self) -> None:
        """End the table's engines, which frees their GPU memory."""
        for engine in self.engines:
            engine.close()


def read_speaker(spec: str, sampling: Sampling) -> Speaker:
    """The speaker that a text names.

    >>> read_speaker("scripted", Sampling())
    Scripted(seed=0)
    >>> read_speaker("http://localhost:8000/v1#qwen", Sampling()).endpoint.model
    'qwen'

    Args:
        spec: One of ``SPECS``. A folder called like one of the fixed names is written ``./name``.
        sampling: Settings for a model.

    Raises:
        UnknownNameError: if the text names nobody.
        ConfigError: if an address names no model or holds a password.
    """
    if spec == "scripted":
        return Scripted()
    if spec in get_args(YardstickName):
        return Yardstick(cast(YardstickName, spec))
    if re.match(r"https?:|[a-z]+://", spec, re.IGNORECASE):
        return Served(_address(spec), sampling)
    try:
        if not spec.strip():  # an empty path would be the folder that we are in
            raise UnknownNameError("an empty name")
        return Local(load_policy(spec), sampling)
    except UnknownNameError as error:
        raise UnknownNameError(f"there is no speaker {spec!r}. Accepted: {SPECS}.") from error


def partner_of(plan: PartnerPlan) -> Speaker:
    """The partner that a plan describes.

    Raises:
        UnknownNameError: if its model is unknown; else as ``models.checkpoints.load_policy``.
    """
    if plan.kind == "local" and plan.model is not None:
        return Local(load_policy(plan.model), plan.sampling, plan.dtype, plan.device)
    if plan.kind == "endpoint" and plan.endpoint is not None:
        return Served(plan.endpoint, plan.sampling)
    return Scripted(plan.seed)


def prompt_style(environment: Environment) -> Style:
    """How the game words its prompts; other people's games that don't say use prose."""
    told = getattr(environment.options, "prompt_style", "full")
    return "compact" if told == "compact" else "full"


def seat(
    environment: Environment,
    agent: Speaker | AgentFactory,
    partner: Speaker | AgentFactory,
    *,
    gamma: float = 0.9,
    explore: PersonaConfig | None = None,
) -> Seating:
    """Seat two speakers at a table; whoever is a factory already is seated as it is.

    Args:
        environment: The game.
        agent: The policy's side.
        partner: The other side.
        gamma: Discount that the oracle plays for and J* is told at.
        explore: Personas under which the agent speaks in a share of the conversations.

    Raises:
        ConfigError: if a speaker can't take that side, or not in this game, or if a fixed agent is
            to explore; all mistakes at once.
    """
    check_seats(environment, agent, partner, explore)
    company = _Company(environment, partner.seed if isinstance(partner, Scripted) else 0, gamma)
    try:
        own = company.factory(agent)
        if explore is not None:
            own = Exploring(own, explore, prompt_style(environment))
        table = Table(environment, own, company.factory(partner), speaker_name(agent))
    except BaseException:
        for engine in company.engines():  # nobody else knows of them yet
            engine.close()
        raise
    return Seating(
        table,
        round=agent.policy.round if isinstance(agent, Local) else 0,
        j_star=_bound(table.partner, gamma),
        engines=company.engines(),
    )


def check_seats(
    environment: Environment,
    agent: Speaker | AgentFactory,
    partner: Speaker | AgentFactory,
    explore: PersonaConfig | None = None,
) -> None:
    """Check that two speakers can take their sides of a game; nothing is loaded.

    Raises:
        ConfigError: with all that stands against it.
    """
    mistakes = []
    if isinstance(agent, Scripted):
        mistakes.append("the agent can't be 'scripted', which is a partner; accepted: any other")
    if agent == Yardstick("oracle") and not isinstance(partner, Scripted):
        mistakes.append("an oracle reads the scripted partner's mind only; seat that one")
    if isinstance(agent, Yardstick):
        mistakes += _without_bargain(environment, agent)
        if explore is not None:
            mistakes.append(f"{agent.name} follows no persona; explore with a model as the agent")
    mistakes += _unusable_sampling(agent)
    _refuse([*mistakes, *_against_partner(environment, partner)])


def check_partner(environment: Environment, partner: Speaker | AgentFactory) -> None:
    """Check that a speaker can be the partner in a game; nothing is loaded.

    Raises:
        ConfigError: if it can't.
    """
    _refuse(_against_partner(environment, partner))


def served(speaker: Served) -> Endpoint:
    """The agents of a served model, with the key from its environment variable.

    Raises:
        ConfigError: if what that variable holds can't be a key.
    """
    return Endpoint(speaker.endpoint, speaker.sampling, read_secret(speaker.endpoint.api_key_env))


def speaker_name(speaker: Speaker | AgentFactory) -> str:
    """Who it is, in one word: ``PolicyRef.id``, the model's name on its server, or its kind."""
    if isinstance(speaker, Local):
        return speaker.policy.id
    if isinstance(speaker, Served):
        return speaker.endpoint.model
    if isinstance(speaker, Yardstick):
        return speaker.name
    return "scripted" if isinstance(speaker, Scripted) else ""


def is_nano(speaker: Speaker | AgentFactory) -> bool:
    """Whether it is the embedded ``nano`` or grew from it, which reads compact prompts only."""
    return isinstance(speaker, Local) and speaker.policy.base_model == "nano"


class _Company:
    """Makes the factories of one table, which share weights and wait for each other."""

    def __init__(self, environment: Environment, partner_seed: int, gamma: float) -> None:
        self._game = cast(Bargaining, environment)
        self._partner_seed = partner_seed
        self._gamma = gamma
        self._models: dict[tuple[str, str, str], Backbone | VllmSampler] = {}
        self._seated: LocalPolicy | None = None

    def factory(self, speaker: Speaker | AgentFactory) -> AgentFactory:
        if isinstance(speaker, Scripted):
            return ScriptedPartner(self._game, speaker.seed)
        if isinstance(speaker, Yardstick):
            return self._yardstick(speaker.name)
        if isinstance(speaker, Local):
            return self._local(speaker)
        if isinstance(speaker, Served):
            return served(speaker)
        return speaker

    def _yardstick(self, name: YardstickName) -> AgentFactory:
        if name == "oracle":
            return Oracle(self._game, self._partner_seed, self._gamma)
        return FirstCounter(self._game) if name == "first-counter" else RandomOffer(self._game)

    def _local(self, speaker: Local) -> AgentFactory:
        from iterpo.agents.local import LocalPolicy
        from iterpo.models.opening import open_policy

        policy, dtype, device = speaker.policy, speaker.dtype, speaker.device
        key = (policy.id, dtype, device)
        if key not in self._models:
            self._models[key] = open_policy(
                policy,
                speaker.sampler,
                speaker.vllm,
                sampling=speaker.sampling,
                dtype=dtype,
                device=device,
            )
        # Waiting for every conversation keeps batches the same in every run. It also means that no
        # request to a server is in flight while a generate call holds up the event loop, so that
        # no deadline passes unnoticed.
        self._seated = LocalPolicy(self._models[key], speaker.sampling, beside=self._seated)
        return self._seated

    def engines(self) -> tuple[VllmSampler, ...]:
        """Those among the models that have to be closed."""
        found = (m for m in self._models.values() if hasattr(m, "close"))
        return tuple(cast("VllmSampler", m) for m in found)


def _bound(partner: AgentFactory, gamma: float) -> JStar | None:
    if not isinstance(partner, ScriptedPartner):
        return None
    return lambda scenario: partner.j_star(scenario, gamma)


def _against_partner(environment: Environment, partner: Speaker | AgentFactory) -> list[str]:
    if isinstance(partner, Yardstick):
        return [f"the partner can't be {partner.name!r}, which speaks for agents only"]
    if isinstance(partner, Scripted):
        return _without_bargain(environment, partner)
    return _unusable_sampling(partner)


def _unusable_sampling(speaker: Speaker | AgentFactory) -> list[str]:
    if not isinstance(speaker, Local | Served):
        return []
    return [f"{speaker_name(speaker)}: sampling.{text}" for text in speaker.sampling.mistakes()]


def _without_bargain(environment: Environment, speaker: Scripted | Yardstick) -> list[str]:
    if bargaining(environment):
        return []
    return [
        f"{environment.name} offers no bargain(), so {speaker_name(speaker)!r} can't play it; "
        "seat a model, or give the game a bargain() (docs/how-to/add-an-environment.md)"
    ]


def _refuse(mistakes: list[str]) -> None:
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def _address(spec: str) -> EndpointConfig:
    url, _, model = spec.partition("#")
    if not model:
        raise ConfigError(
            "the address of a served model names no model; accepted: URL#MODEL, such as "
            "http://localhost:8000/v1#qwen (GET URL/models lists what is served)"
        )
    return EndpointConfig(url, model)
