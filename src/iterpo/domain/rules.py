"""broken: the fields of a settings class whose values are not accepted, a line for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from iterpo.errors import ConfigError

__all__ = ["Rule", "broken", "refuse"]

Rule = tuple[Callable[[Any], bool], str]
"""Whether a value is accepted, and what is, in words."""


def broken(owner: object, /, **rules: Rule) -> list[str]:
    """What is wrong with the fields of ``owner`` that have a rule, in the order of the rules.

    >>> from types import SimpleNamespace
    >>> broken(SimpleNamespace(n=0, m=1), n=(bool, "not 0"), m=(bool, "not 0"))
    ['n: given 0; accepted: not 0']
    """
    return [
        f"{name}: given {getattr(owner, name)!r}; accepted: {accepted}"
        for name, (holds, accepted) in rules.items()
        if not holds(getattr(owner, name))
    ]


def refuse(owner: object, /, **rules: Rule) -> None:
    """Refuse an owner with broken rules.

    Raises:
        ConfigError: with one line for each mistake.
    """
    if mistakes := broken(owner, **rules):
        raise ConfigError("\n".join(mistakes))
