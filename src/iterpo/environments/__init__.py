"""Games as pure functions of (scenario, transcript); one file each, found by name.

Other packages add theirs through the entry-point group ``iterpo.environments``.
"""

from __future__ import annotations

import dataclasses
import difflib
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from iterpo.domain.plugins import Plugins
from iterpo.environments.base import Environment, NoOptions, PromptStyle
from iterpo.errors import ConfigError

__all__ = ["PLUGINS", "REGISTRY", "Environment", "NoOptions", "PromptStyle", "make", "names"]

REGISTRY: dict[str, str] = {
    "alliance": "iterpo.environments.alliance:Alliance",
    "casino": "iterpo.environments.casino:Casino",
    "craigslist": "iterpo.environments.craigslist:Craigslist",
    "deal_or_no_deal": "iterpo.environments.deal_or_no_deal:DealOrNoDeal",
    "job_interview": "iterpo.environments.job_interview:JobInterview",
    "ultimatum": "iterpo.environments.ultimatum:Ultimatum",
}
"""Name -> "module:Class". The class names its frozen options dataclass in ``options_type`` and
takes an instance of it; without that attribute it has no options and takes no argument."""

GROUP = "iterpo.environments"
PLUGINS = Plugins("environment", GROUP, REGISTRY)
"""These and those of other packages."""


def names() -> tuple[str, ...]:
    """Names of all environments, those of other packages included."""
    return tuple(sorted(PLUGINS.names()))


def make(name: str, **options: object) -> Environment:
    """An environment by name.

    Args:
        name: One of ``names()``.
        options: Fields of its options dataclass; the rest keep their defaults.

    Raises:
        UnknownNameError: if there is no such environment.
        MissingExtraError: if it is of another package, which can't be imported.
        ConfigError: if options are unknown or of the wrong kind; lists all of them.
    """
    cls = PLUGINS.load(name)
    options_type = getattr(cls, "options_type", NoOptions)
    mistakes = _mistakes(options_type, options)
    if mistakes:
        raise ConfigError(f"environment {name!r}: " + "; ".join(mistakes))
    given = () if options_type is NoOptions else (options_type(**options),)
    return cast(Environment, cls(*given))


def _mistakes(options_type: type, options: dict[str, object]) -> list[str]:
    hints = get_type_hints(options_type)
    known = [f.name for f in dataclasses.fields(options_type)]
    out = []
    for key, value in options.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f", did you mean {close[0]!r}?" if close else ""
            out.append(f"unknown option {key!r} (there are {', '.join(known) or 'none'}){hint}")
        elif not _fits(value, hints[key]):
            out.append(f"option {key!r} is {value!r}; accepted: {_described(hints[key])}")
    return out


def _fits(value: object, kind: Any) -> bool:
    origin = get_origin(kind)
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(kind))
    if origin in (Union, UnionType):
        return any(_fits(value, k) for k in get_args(kind))
    # bool is an int in Python, but 1 is no switch and True is no number here.
    kinds = (int, float) if kind is float else origin or kind
    return isinstance(value, kinds) and (kind is bool or not isinstance(value, bool))


def _described(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return " | ".join(map(str, get_args(kind)))
    if origin in (Union, UnionType):
        return " | ".join(_described(k) for k in get_args(kind))
    plain = {
        bool: "true | false",
        str: "text",
        type(None): "null",
        float: "a number",
        int: "a whole number",
    }
    return plain[kind] if kind in plain else str(kind.__name__)
