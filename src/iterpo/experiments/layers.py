"""Layers: settings of a plan laid over others, as the cells of a study are made of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

__all__ = ["Settings", "cell_values", "merged"]

Settings = Mapping[str, Any]
"""Nested settings of a plan."""


def merged(below: Settings, above: Settings | None) -> dict[str, Any]:
    """Nested settings laid over others; a mapping goes into a mapping, all else replaces.

    >>> merged({"q": {"heads": 8, "clamp": True}, "seed": 1}, {"q": {"heads": 1}})
    {'q': {'heads': 1, 'clamp': True}, 'seed': 1}
    """
    out = copy.deepcopy(dict(below))
    for key, value in (above or {}).items():
        inner = out.get(key)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        out[key] = merged(inner or {}, value) if both else copy.deepcopy(value)
    return out


def cell_values(
    plan: Settings, label: str, environment: Settings | None, method: Settings | None = None
) -> dict[str, Any]:
    """The plan of a cell; its game is the environment's label unless the settings name one.

    >>> cell_values({"rounds": 2}, "casino", None, {"q": {"heads": 1}})
    {'rounds': 2, 'environment': {'name': 'casino'}, 'q': {'heads': 1}}
    """
    named = merged(plan, {"environment": {"name": label}})
    return merged(merged(named, environment), method)
