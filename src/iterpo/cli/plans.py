"""How commands read a plan: file, run folder or preset, then environment, then ``--set``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iterpo.experiments.plan import Plan
    from iterpo.experiments.study import Study

__all__ = ["read_plan", "read_study_file"]


def read_plan(source: str, settings: Sequence[str] | None) -> Plan:
    """A checked plan, the game and its options included.

    Raises:
        ConfigError: with all mistakes at once, those about the game included.
    """
    from iterpo.cli.games import with_data
    from iterpo.config import environment_overrides
    from iterpo.experiments.ledger import PLAN
    from iterpo.experiments.plan import load_plan

    stored = Path(source) / PLAN
    if stored.is_file():  # a run folder: its plan is complete, the environment has no say
        plan = load_plan(stored, settings or (), _about_plugins)
    else:
        given = [*environment_overrides(), *(settings or ())]
        plan = load_plan(source, given, _about_plugins)
    options = with_data(plan.environment.name, plan.environment.options)
    return replace(plan, environment=replace(plan.environment, options=options))


def read_study_file(source: str, settings: Sequence[str] | None) -> Study:
    """A checked study, all its games and their options included.

    Variables such as ITERPO__ROUNDS set a key of its plan, as they do for a plan.

    Raises:
        ConfigError: with all mistakes at once.
    """
    from iterpo.cli.games import with_data
    from iterpo.config import environment_overrides
    from iterpo.experiments.layers import merged
    from iterpo.experiments.study import load_study
    from iterpo.experiments.study_cell import STUDY

    stored = Path(source) / STUDY
    if stored.is_file():  # a study folder is complete, the environment has no say
        study = load_study(stored, settings or (), _about_plugins)
    else:
        given = [f"plan.{setting}" for setting in environment_overrides()]
        study = load_study(source, [*given, *(settings or ())], _about_plugins)
    environments = {}
    for label, own in study.environments.items():
        game = study.plan_of(label, None).environment
        options = with_data(game.name, game.options)
        environments[label] = merged(own or {}, {"environment": {"options": options}})
    return replace(study, environments=environments)


def _about_plugins(values: Mapping[str, Any]) -> Sequence[str]:
    """What a plan can't be checked for below: its game, and a method of another package."""
    return (*_about_the_game(values), *_about_the_method(values))


def _about_the_method(values: Mapping[str, Any]) -> Sequence[str]:
    """Whether a method can be imported and takes its options, before others have run for hours."""
    from iterpo.errors import MissingExtraError
    from iterpo.methods.base import PLUGINS, wrong_options

    section = values.get("method")
    if not isinstance(section, Mapping):
        return ()
    name, options = section.get("name"), section.get("options", {})
    if not isinstance(name, str) or name in PLUGINS.built_in or PLUGINS.unknown(name):
        return ()  # what is unknown is refused by the plan itself
    if not isinstance(options, Mapping):
        return ()
    try:
        return [f"method.{m}" for m in wrong_options(name, options)]
    except MissingExtraError as error:
        return (f"method.name: {error}",)


def _about_the_game(values: Mapping[str, Any]) -> Sequence[str]:
    """Mistakes in a plan's game, where its section is well-formed enough to look at them."""
    from iterpo import environments
    from iterpo.errors import ConfigError, MissingExtraError, UnknownNameError

    section = values.get("environment")
    if not isinstance(section, Mapping):
        return ()
    name, options = section.get("name", "ultimatum"), section.get("options", {})
    if not isinstance(name, str) or not isinstance(options, Mapping):
        return ()
    try:
        environments.make(name, **{str(key): value for key, value in options.items()})
    except (UnknownNameError, MissingExtraError) as error:
        return (f"environment.name: {error}",)
    except ConfigError as error:
        return (f"environment.options: {error}",)
    return ()
