"""All that is wrong with the cells of a study, found before any of them runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from iterpo.config import parse
from iterpo.errors import ConfigError
from iterpo.experiments.layers import Settings, cell_values
from iterpo.experiments.plan import Plan

__all__ = ["Check", "mistakes"]

Check = Callable[[Mapping[str, Any]], Sequence[str]]
"""Gives further mistakes of a plan's plain values, as in ``load_plan``."""

_OF_THE_STUDY = ("name", "seed")
_ALIKE = (
    *("environment", "partner", "heldout", "rounds"),
    *("collect.data_seed", "collect.kernels", "q.gamma", "q.discount_unit"),
)
"""What methods are compared on: none of them may have it otherwise."""


def mistakes(values: Settings, check: Check) -> Iterator[str]:
    """What is wrong in the plans of all cells, each mistake once and where it comes from.

    Args:
        values: A study's plain values. Sections of a wrong type are left to the parser.
        check: Further mistakes of a plan.
    """
    plan, *rest = (values.get(name, {}) for name in ("plan", "environments", "methods"))
    parts = [
        {str(k): v for k, v in p.items() if v is None or isinstance(v, Mapping)}
        for p in rest
        if isinstance(p, Mapping)
    ]
    if not isinstance(plan, Mapping) or len(parts) < 2:
        return
    environments, methods = parts
    yield from _misplaced(environments, methods)
    known: dict[str, list[str]] = {}
    for label, settings in environments.items():
        known[label] = _wrong(cell_values(plan, label, settings), check)
    alone = {label: _wrong(cell_values(plan, label, None), check) for label in environments}
    of_plan = [
        line
        for label, lines in known.items()
        for line in lines
        if line in alone[label] and not line.startswith("environment.name")
    ]
    yield from (f"plan.{line}" for line in dict.fromkeys(of_plan))
    for label, lines in known.items():
        yield from (f"environments.{label}.{line}" for line in lines if line not in of_plan)
    for label, settings in methods.items():
        found = {
            e: [x for x in _wrong(cell_values(plan, e, s, settings), check) if x not in known[e]]
            for e, s in environments.items()
        }
        yield from _of_a_method(label, found)


def _misplaced(
    environments: Mapping[str, Settings | None], methods: Mapping[str, Settings | None]
) -> Iterator[str]:
    for label, settings in environments.items():
        for key in _OF_THE_STUDY:
            if _given(settings or {}, key):
                yield f"environments.{label}.{key}: given; accepted: `{key}` of the study alone"
    for label, settings in methods.items():
        for key in (*_OF_THE_STUDY, *_ALIKE):
            if _given(settings or {}, key):
                yield (
                    f"methods.{label}.{key}: given; accepted: nothing, since methods are compared "
                    "on the same; set it in the plan or by environment"
                )


def _of_a_method(label: str, found: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for line in dict.fromkeys(x for lines in found.values() for x in lines):
        where = [e for e, lines in found.items() if line in lines]
        only = "" if len(where) == len(found) else f" (in {', '.join(where)})"
        yield f"methods.{label}.{line}{only}"


def _wrong(values: Settings, check: Check) -> list[str]:
    try:
        parse(Plan, values, "", check(values))
    except ConfigError as error:
        return [line.strip() for line in str(error).splitlines()[1:]]
    return []


def _given(settings: Settings, key: str) -> bool:
    here: Any = settings
    for part in key.split("."):
        if not isinstance(here, Mapping) or part not in here:
            return False
        here = here[part]
    return True
