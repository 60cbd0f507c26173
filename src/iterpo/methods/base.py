"""What a method is: logged conversations in, a better policy out, and nothing else in reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from iterpo.config import dump, parse
from iterpo.domain import Conversation, PolicyRef, Response, Reward, State
from iterpo.domain.plugins import Plugins
from iterpo.errors import ConfigError
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_improvement.base import Learner

if TYPE_CHECKING:
    from iterpo.models.backbone import Backbone

__all__ = [
    "PLUGINS",
    "REGISTRY",
    "Build",
    "Method",
    "RoundBatch",
    "Workspace",
    "make",
    "names",
    "options_type",
    "wrong_options",
]

REGISTRY = {
    "archer": "iterpo.methods.archer:ArCHer",
    "archer_lc": "iterpo.methods.archer_lc:ArCHerLC",
    "iterpo": "iterpo.methods.iterpo:IterPO",
    "mt_kto": "iterpo.methods.mt_kto:MtKto",
    "mt_ppo": "iterpo.methods.mt_ppo:MtPpo",
    "mt_sft": "iterpo.methods.mt_sft:MtSft",
    "st_grpo": "iterpo.methods.st_grpo:StGrpo",
}
"""Built-in methods; other packages add theirs by the entry-point group ``iterpo.methods``."""

PLUGINS = Plugins("method", "iterpo.methods", REGISTRY)
"""These and those of other packages."""


@dataclass(frozen=True, slots=True)
class RoundBatch:
    """All that a method may learn from in round i: logged data, no simulator."""

    round: int
    """Index i of the round."""
    conversations: tuple[Conversation, ...]
    """D_i, logged under pi_i: all rounds' logs of it, where it was deployed more than once."""
    initial_policy: PolicyRef
    """pi_0."""
    earlier: tuple[tuple[Conversation, ...], ...] = ()
    """Logs of other policies, by round: D_0 … D_{i-1} as a rule."""


Build = Callable[[Path, Path | None], Mapping[str, Any]]
"""Fills a folder, with the same stage's folder of the update before at hand (None if there is
none), and returns facts worth keeping beside the files."""


class Workspace(Protocol):
    """The two operators of the reduction, with their settings, storage and resumption.

    The rest is for methods that need more than these two. All that is given back was made once and
    is found again when an update goes on after a kill.
    """

    @property
    def q(self) -> QConfig:
        """How the plan values conversations: discount, frozen weights, and the round's seed."""
        ...

    def fit_q(self, policy: PolicyRef, batch: RoundBatch, *, gamma: float | None = None) -> Reward:
        """Observation 3.5: Q^pi by regression on Monte-Carlo returns; ``gamma`` overrides."""
        ...

    def improve(self, policy: PolicyRef, batch: RoundBatch, *, reward: Reward) -> PolicyRef:
        """Observation 3.1: single-turn RL on the logged states with any reward."""
        ...

    def learn(self, policy: PolicyRef, batch: RoundBatch, learner: Learner) -> PolicyRef:
        """Any other training of the policy, at the plan's ``improve.lora``."""
        ...

    def stage(self, name: str, build: Build) -> Path:
        """A folder of the method's own, e.g. a critic, which ``build`` fills."""
        ...

    def backbone(self, policy: PolicyRef, quantize: Literal["nf4"] | None = None) -> Backbone:
        """The frozen weights of a policy, with its tokenizer and chat template."""
        ...

    def log_probs(
        self, policy: PolicyRef, states: Sequence[State], responses: Sequence[Response]
    ) -> list[tuple[float, ...]]:
        """Log-probability of every token of each response under the frozen weights of a policy."""
        ...

    def own(self, batch: RoundBatch) -> tuple[Conversation, ...]:
        """The conversations of the round to learn from, without those set aside for the judge."""
        ...

    def note(self, text: str) -> None:
        """Keep a remark on the update, for people; told with its facts."""
        ...


class Method(Protocol):
    """One row of the paper's Table 1."""

    def update(self, policy: PolicyRef, batch: RoundBatch, workspace: Workspace) -> PolicyRef:
        """pi_i and D_i to pi_{i+1}."""
        ...


def names() -> tuple[str, ...]:
    """Registered methods, built-in ones first."""
    return PLUGINS.names()


def make(name: str, options: Mapping[str, Any] | None = None) -> Method:
    """The method of that name.

    A method with settings of its own names their frozen dataclass ``Options`` and is made with an
    instance of it.

    Raises:
        UnknownNameError: if it is not registered.
        MissingExtraError: if it is of another package, which can't be imported.
        ConfigError: with all that is wrong with the options.
    """
    kind = PLUGINS.load(name)
    accepted = options_type(name, kind)
    if accepted is None and options:
        raise ConfigError(f"{name} takes no options; given {', '.join(options)}")
    given: tuple[Any, ...] = ()
    if accepted is not None:
        given = (parse(accepted, options or {}, f"options of {name}"),)
    if name in PLUGINS.built_in:
        return cast(Method, kind(*given))
    for instance in given:
        parse(type(instance), dump(instance), f"defaults of the options of {name}")
    try:
        made = kind(*given)
    except TypeError as error:
        raise ConfigError(
            f"method {name!r} can't be made ({error}); accepted: a class that takes an instance of "
            "its Options, or no argument where it has none"
        ) from error
    _check_update(name, made)
    return cast(Method, made)


def options_type(name: str, kind: Any) -> type | None:
    """The dataclass of a method's settings; None where it has none.

    Raises:
        ConfigError: if it is no dataclass.
    """
    accepted = getattr(kind, "Options", None)
    if accepted is None:
        return None
    if not (isinstance(accepted, type) and is_dataclass(accepted)):
        raise ConfigError(f"Options of method {name!r} is {accepted!r}; accepted: a dataclass")
    return accepted


def _check_update(name: str, made: Any) -> None:
    update = getattr(made, "update", None)
    try:
        if not callable(update):
            raise TypeError("it has none")
        signature(update).bind(None, None, None)
    except TypeError as error:
        raise ConfigError(
            f"method {name!r} needs a function update(policy, batch, workspace): {error}"
        ) from error


def wrong_options(name: str, options: Mapping[str, Any]) -> list[str]:
    """What ``make`` refuses of the options of a method, a line each that begins with its key."""
    try:
        make(name, options)
    except ConfigError as error:
        first, *listed = [line.strip() for line in str(error).splitlines()]
        return [f"options.{m}" for m in listed] or [f"options: {first}"]
    return []
