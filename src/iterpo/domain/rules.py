"""broken, within: the fields of a settings class whose values are not accepted, a line for each."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from iterpo.errors import ConfigError

__all__ = ["Rule", "broken", "one_of", "refuse", "within"]

Rule = tuple[Callable[[Any], bool], str]
"""Whether a value is accepted, and what is, in words."""

_SPAN = re.compile(r"([\[(])([^,]+), ([^,]+)([\])])")


def within(span: str, *, zero: str = "", null: str | None = None) -> Rule:
    """A number in an interval; never infinity or NaN.

    Args:
        span: As mathematicians write it: ``[0, 1)``; without an upper end ``[1, inf)``.
        zero: What the lower end, 0, means.
        null: What None means, which is accepted then; empty if that goes without saying.

    >>> within("(0, 1]")[1], within("[0, 9]", zero="none")[1]
    ('above 0, at most 1', '0 (none) to 9')
    >>> holds, accepted = within("[1, inf)", null="by epochs")
    >>> holds(None), holds(0), holds(float("inf")), accepted
    (True, False, False, '1 or more, or null (by epochs)')
    """
    found = _SPAN.fullmatch(span)
    if found is None:
        raise ValueError(f"{span!r} is no interval")
    left, low, high, right = found.groups()
    least, most = float(low), float(high)

    def holds(value: Any) -> bool:
        if value is None:
            return null is not None
        above = value > least if left == "(" else value >= least
        return bool(above and (value < most if right == ")" else value <= most))

    return holds, _in_words(left, low + (f" ({zero})" if zero else ""), high, right, null)


def _in_words(left: str, low: str, high: str, right: str, null: str | None) -> str:
    if math.isinf(float(high)):
        words = f"above {low}" if left == "(" else f"{low} or more"
    elif (left, right) == ("[", "]"):
        words = f"{low} to {high}"
    else:
        ends = f"above {low}" if left == "(" else f"{low} or more"
        words = f"{ends}, {'below' if right == ')' else 'at most'} {high}"
    meaning = f" ({null})" if null else ""
    return words if null is None else f"{words}, or null{meaning}"


def one_of(values: tuple[Any, ...]) -> Rule:
    """One of a few.

    >>> one_of(("a", "b"))[1]
    'a, b'
    """
    return (lambda value: value in values), ", ".join(map(str, values))


def broken(owner: object, /, **rules: Rule) -> list[str]:
    """What is wrong with the fields of ``owner`` that have a rule, in the order of the rules.

    >>> from types import SimpleNamespace
    >>> broken(SimpleNamespace(n=0, m=1), n=within("[1, inf)"), m=(bool, "not 0"))
    ['n: given 0; accepted: 1 or more']
    """
    return [
        f"{name}: given {getattr(owner, name)!r}; accepted: {accepted}"
        for name, (holds, accepted) in rules.items()
        if not holds(getattr(owner, name))
    ]


def refuse(owner: object, /, *parts: Callable[[], object], **rules: Rule) -> None:
    """Refuse an owner with broken rules.

    Args:
        owner: Whose fields are looked at.
        parts: Make what is made of these fields; what that refuses is told with the rest.
        rules: By field.

    Raises:
        ConfigError: with one line for each mistake.
    """
    mistakes = broken(owner, **rules)
    named = {line.partition(":")[0] for line in mistakes}
    for make in parts:
        try:
            make()
        except ConfigError as error:
            lines = str(error).splitlines()
            mistakes += [line for line in lines if line.partition(":")[0] not in named]
    if mistakes:
        raise ConfigError("\n".join(mistakes))
