"""Remembers what was read in a message, but no long messages: they would fill the memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

__all__ = ["LONGEST", "remembered"]

F = TypeVar("F", bound=Callable[..., Any])

LONGEST = 4096
"""Characters of the longest message that is kept."""


def remembered(read: F) -> F:
    """A pure function of a message (any text among its arguments), asked again and again.

    A conversation is read anew after every message, so the same texts recur. The cache holds 16,384
    of them, at most about 64 MB; longer messages are read each time.
    """
    cached = lru_cache(maxsize=16384)(read)

    @wraps(read)
    def reading(*args: Any, **options: Any) -> Any:
        for given in args:
            if isinstance(given, str) and len(given) > LONGEST:
                return read(*args, **options)
        return cached(*args, **options)

    return cast(F, reading)
