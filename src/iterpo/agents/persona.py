"""Exploration by personas: a share of the conversations is spoken in a randomly drawn character.

Section 3.4 of the paper: a policy that is nearly deterministic teaches Q little about other
responses, so some conversations are led by the same policy under an added instruction (tone,
brevity, firmness, …). What was drawn, and how probable that was, is kept with the conversation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Literal, get_args

from iterpo.agents.base import Agent, AgentFactory, Reply, Seat
from iterpo.agents.traits import TRAITS, instruction
from iterpo.agents.wording import Style
from iterpo.domain import Exploration, Role, View, uniform
from iterpo.domain.rules import broken, one_of, within
from iterpo.errors import ConfigError

__all__ = ["Exploring", "PersonaConfig", "Scope", "draw_persona", "every_draw", "longest"]

Scope = Literal["conversation", "action"]
"""``conversation``: the persona speaks throughout; ``action``: it says one message, the policy
itself all others, so that the returns from there on are the policy's own."""

_HEAVIEST = 1e9
"""Largest weight of a value; sums stay finite."""


def _evenly() -> dict[str, dict[str, float]]:
    return {trait: dict.fromkeys(values, 1.0) for trait, values in TRAITS.items()}


@dataclass(frozen=True, slots=True)
class PersonaConfig:
    """How conversations are drawn for exploration (section 3.4)."""

    share: float = 0.25
    """Probability that a conversation is explored, in (0, 1]."""
    scope: Scope = "conversation"
    """`conversation`: the persona speaks throughout, and Q can't be fitted to what it does
    without a correction; `action`: it says one message, from which on Q can be fitted."""
    within: int = 3
    """With scope `action`: the message is drawn evenly from the agent's first so many."""
    traits: Mapping[str, Mapping[str, float]] = field(default_factory=_evenly)
    """Weight of each value by trait, every trait drawn by itself; 0 leaves a value out. By
    default all that `agents/traits.py` knows, evenly."""

    def __post_init__(self) -> None:
        """Refuse impossible values.

        Raises:
            ConfigError: with one line for each mistake.
        """
        scopes = get_args(Scope)
        mistakes = [
            *broken(
                self,
                share=within("(0, 1]"),
                scope=one_of(scopes),
                within=within("[1, inf)"),
            ),
            *(() if self.traits else (f"traits: given none; accepted: {', '.join(TRAITS)}",)),
            *(text for trait in self.traits for text in _wrong_weights(trait, self.traits[trait])),
        ]
        if mistakes:
            raise ConfigError("\n".join(mistakes))


def _wrong_weights(trait: str, weights: Mapping[str, float]) -> Iterator[str]:
    if trait not in TRAITS:
        yield f"traits: given {trait!r}; accepted: {', '.join(TRAITS)}"
        return
    for value, weight in weights.items():
        if value not in TRAITS[trait]:
            yield f"traits: given {trait}.{value}; accepted of {trait}: {', '.join(TRAITS[trait])}"
        if not 0 <= weight <= _HEAVIEST:
            yield (
                f"traits: given weight {weight!r} for {trait}.{value}; accepted: 0 to {_HEAVIEST:g}"
            )
    if not any(weight > 0 for weight in weights.values()):
        yield f"traits: given no value of {trait} to draw; accepted: a weight above 0"


def draw_persona(config: PersonaConfig, seed: int) -> Exploration:
    """The draw for the conversation of that seed: explored or not, then each trait by itself.

    Every part has a seed of its own, so that a change to one trait leaves the others' draws, and
    whatever else the conversation draws, as they were.
    """
    if uniform(seed, "persona", "share") >= config.share:
        return Exploration({}, 1.0 - config.share)
    traits, propensity = {}, config.share
    for trait, chances in _chances(config).items():
        traits[trait] = _pick(chances, uniform(seed, "persona", f"trait {trait}"))
        propensity *= chances[traits[trait]]
    if config.scope == "conversation":
        return Exploration(traits, propensity)
    action = 1 + int(config.within * uniform(seed, "persona", "action"))
    return Exploration(traits, propensity / config.within, action)


def every_draw(config: PersonaConfig) -> Iterator[Exploration]:
    """All draws that ``draw_persona`` can give; their propensities sum to 1."""
    if config.share < 1:
        yield Exploration({}, 1.0 - config.share)
    chances = _chances(config)
    once = config.scope == "action"
    actions = range(1, config.within + 1) if once else (None,)
    for values in product(*chances.values()):
        traits = dict(zip(chances, values, strict=True))
        each = math.prod(chances[trait][value] for trait, value in traits.items())
        for action in actions:
            yield Exploration(traits, config.share * each / len(actions), action)


def longest(config: PersonaConfig, style: Style) -> str:
    """The longest instruction that can be drawn, for what must fit a context."""
    worst = {
        trait: max(chances, key=lambda value: len(instruction({trait: value}, style)))
        for trait, chances in _chances(config).items()
    }
    return instruction(worst, style)


@dataclass(frozen=True)
class Exploring:
    """An ``AgentFactory``: another one, under the persona that each conversation draws.

    The inner agent sees the instruction after its system prompt. The transcript, and the system
    prompt that training sees, stay the plain ones; what the persona said is marked off-policy.

    The log-probabilities that are stored with such a turn are those under the prompt *with* the
    instruction (``prompt_sha256`` is that prompt's hash): log pi(a | s, persona), the distribution
    that the response was drawn from. As the denominator of an importance weight they are right;
    as the policy's own log pi(a | s) they are wrong: the numerator has to be computed anew
    under the plain prompt. The weight holds for the draw that was made, so the propensity does
    not enter it; it is needed to mix draws, or to reweight one share of them to another.
    """

    inner: AgentFactory
    """The policy's agents."""
    config: PersonaConfig
    """What is drawn."""
    style: Style = "full"
    """Wording of the instructions; that of the game's prompts."""

    def __call__(self, seat: Seat) -> Agent:
        """An agent for one seat.

        Raises:
            ConfigError: if the seat is the partner's, whose draws nobody would note.
        """
        if seat.role is not Role.AGENT:
            raise ConfigError(
                f"exploration is for the agent's seat, not for the {seat.role.value!r}'s"
            )
        drawn = draw_persona(self.config, seat.seed)
        return _Persona(self.inner(seat), drawn, instruction(drawn.traits, self.style))


class _Persona:
    def __init__(self, inner: Agent, exploration: Exploration, told: str) -> None:
        self.exploration = exploration
        self._inner = inner
        self._told = told

    async def reply(self, view: View) -> Reply:
        """The next message, as the persona where it is its turn to speak."""
        t = 1 + sum(turn.role is view.role and not turn.scripted for turn in view.turns)
        if not self.exploration.off_policy or self.exploration.action not in (None, t):
            return await self._inner.reply(view)
        system = (view.system + self._told).lstrip()
        return replace(await self._inner.reply(replace(view, system=system)), off_policy=True)

    def close(self) -> None:
        """The conversation is over."""
        self._inner.close()


def _chances(config: PersonaConfig) -> dict[str, dict[str, float]]:
    """Probability of every value that can be drawn.

    In the order of the table, not of the config: equal settings draw alike however written.
    """
    out = {}
    for trait in (t for t in TRAITS if t in config.traits):
        weights = config.traits[trait]
        total = math.fsum(weights.values())
        out[trait] = {v: weights[v] / total for v in TRAITS[trait] if weights.get(v, 0) > 0}
    return out


def _pick(chances: Mapping[str, float], at: float) -> str:
    below = 0.0
    for value, chance in chances.items():
        below += chance
        if at < below:
            return value
    return value  # the chances sum to a rounding error below 1
