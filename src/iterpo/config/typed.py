"""Plain values to nested frozen dataclasses and back; every mistake in one error."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import json
import math
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from iterpo.config.schema import accepted, adapter, all_keys, hints_of, nested
from iterpo.config.text import all_in_one, shown, to_yaml

__all__ = ["canonical_yaml", "dump", "parse"]

T = TypeVar("T")


def parse(cls: type[T], mapping: Mapping[str, Any], source: str, also: Sequence[str] = ()) -> T:
    """An instance of a frozen dataclass (nested ones included) from plain values.

    Nothing is coerced but whole numbers to floats and texts to enum members and paths. Numbers are
    finite.

    Args:
        cls: Dataclass to build.
        mapping: Plain values, as YAML gives them.
        source: Where they come from, for messages.
        also: Mistakes that the caller has found, to be told with the rest.

    Raises:
        ConfigError: with every unknown key, wrong type, wrong value and missing key at once,
            each by its dotted name.
    """
    checker = adapter(cls)
    values = copy.deepcopy(dict(mapping))
    dropped: set[tuple[Any, ...]] = set()
    judged: set[tuple[Any, ...]] = set()
    mistakes = list(_drop_unknown(cls, values, (), cls))
    for path, given in reversed(list(_not_finite(values, ()))):
        dotted = ".".join(map(str, path))
        mistakes.append(f"{dotted}: given {shown(given)}; accepted: a finite number")
        _drop(values, path)
        dropped.add(path)
    # Each pass drops what was wrong, so that checks which a first mistake hides are made too.
    while True:
        try:
            text = json.dumps(values, default=str)
            instance = checker.validate_json(text, strict=True)
        except pydantic.ValidationError as error:
            found, bad = _explain(cls, values, error, dropped, judged)
            mistakes += [line for line in found if line not in mistakes]
            fresh = {path for path in bad if _drop(values, path)}
            dropped |= fresh
            if not fresh:
                break
        else:
            break
    mistakes += [line for line in also if line not in mistakes]
    if mistakes:
        raise all_in_one(source, mistakes)
    return instance


def dump(instance: Any) -> Any:
    """A dataclass instance as plain JSON values; ``parse`` reads them back."""
    if dataclasses.is_dataclass(instance) and not isinstance(instance, type):
        return {f.name: dump(getattr(instance, f.name)) for f in dataclasses.fields(instance)}
    if isinstance(instance, Mapping):
        return {str(key): dump(value) for key, value in instance.items()}
    if isinstance(instance, (tuple, list, frozenset, set)):
        items = [dump(item) for item in instance]
        return sorted(items, key=repr) if isinstance(instance, (frozenset, set)) else items
    if isinstance(instance, Enum):
        return instance.value
    return str(instance) if isinstance(instance, Path) else instance


def canonical_yaml(instance: Any) -> str:
    """The one YAML text of a value, defaults included, keys in declared order."""
    return to_yaml(dump(instance))


def _drop_unknown(
    cls: type, values: dict[str, Any], path: tuple[str, ...], root: type
) -> Iterator[str]:
    hints = hints_of(cls)
    for key in list(values):
        inner = nested(hints.get(key))
        if key not in hints:
            given = values.pop(key)
            dotted = ".".join((*path, str(key)))
            where = f" in {'.'.join(path)}" if path else ""
            yield (
                f"{dotted}: unknown key, given {shown(given)}; accepted{where}: "
                f"{', '.join(hints)}.{_did_you_mean(str(key), path, hints, root)}"
            )
        elif inner and isinstance(values[key], dict):
            yield from _drop_unknown(inner, values[key], (*path, key), root)


def _not_finite(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], float]]:
    """Numbers that are infinite or none: YAML has them, the JSON files of results do not."""
    if isinstance(value, float) and not math.isfinite(value):
        yield path, value
    elif isinstance(value, (dict, list)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _not_finite(part, (*path, key))


def _did_you_mean(key: str, path: tuple[str, ...], hints: Iterable[str], root: type) -> str:
    short = [h for h in hints if "_" in h and key == "".join(w[:1] for w in h.split("_"))]
    if near := short or difflib.get_close_matches(key, list(hints), n=1, cutoff=0.6):
        return f" Did you mean {'.'.join((*path, near[0]))}?"
    elsewhere = {full: full.rpartition(".")[2] for full in all_keys(root)}
    near = difflib.get_close_matches(key, list(elsewhere.values()), n=1, cutoff=0.75)
    places = [full for full, last in elsewhere.items() if near and last == near[0]]
    return f" Did you mean {' or '.join(places)}?" if places else ""


def _explain(
    cls: type,
    values: Any,
    error: pydantic.ValidationError,
    dropped: set[tuple[Any, ...]],
    judged: set[tuple[Any, ...]],
) -> tuple[list[str], set[tuple[Any, ...]]]:
    """Mistakes and where they are; ``judged`` gains the sections that have told all of theirs."""
    lines: dict[str, None] = {}
    bad: set[tuple[Any, ...]] = set()
    for item in error.errors(include_url=False):
        path, hint, given = _locate(cls, values, item["loc"])
        dotted = ".".join(str(p) for p in path)
        own = item.get("ctx", {}).get("error")
        if item["type"] == "missing":
            if path in dropped:
                continue
            lines[f"{dotted}: required, but not given; accepted: {accepted(hint)}"] = None
        elif isinstance(own, Exception):
            inner = nested(hint)
            fields = hints_of(inner) if inner else {}
            for line in _own_lines(own):
                key = line.split()[0].rstrip(":").split(".")
                joint = "." if key[0] in fields else ": "
                # Else of a default in the place of a refused value, or of what is left of one.
                if path not in judged and not _thinned((*path, key[0]), dropped):
                    lines[f"{dotted}{joint if dotted else ''}{line}"] = None
                bad.add((*path, *key) if key[0] in fields else path)
            judged.add(path)
        else:
            near = ""
            if isinstance(given, str) and accepted(hint).startswith("one of "):
                options = accepted(hint).removeprefix("one of ").split(", ")
                match = difflib.get_close_matches(given, options, n=1, cutoff=0.6)
                near = f". Did you mean {match[0]}?" if match else ""
            lines[f"{dotted}: given {shown(given)}; accepted: {accepted(hint)}{near}"] = None
            bad.add(path)
    return list(lines), bad


def _thinned(path: tuple[Any, ...], dropped: set[tuple[Any, ...]]) -> bool:
    """Whether something inside the value at ``path`` was dropped."""
    return any(len(d) > len(path) and d[: len(path)] == path for d in dropped)


def _own_lines(error: Exception) -> list[str]:
    """The mistakes that a class lists itself: indented lines under a headline, else all lines."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    listed = [line for line in lines[1:] if line.startswith("  ")]
    return [line.strip() for line in listed or lines] or [type(error).__name__]


def _locate(cls: type, values: Any, loc: Sequence[Any]) -> tuple[tuple[Any, ...], Any, Any]:
    """Path, type and value behind a pydantic location, whose tail may name union branches."""
    path: list[Any] = []
    hint: Any = cls
    value = values
    for part in loc:
        inner = nested(hint)
        if inner and part in hints_of(inner):
            hint = hints_of(inner)[part]
            value = value.get(part) if isinstance(value, dict) else None
        elif isinstance(part, int) and isinstance(value, list) and part < len(value):
            args = typing.get_args(hint)
            hint, value = (args[0] if args else Any), value[part]
        elif typing.get_origin(hint) is Mapping and isinstance(value, dict) and part in value:
            hint, value = typing.get_args(hint)[1], value[part]
        else:
            break
        path.append(part)
    return tuple(path), hint, value


def _drop(values: Any, path: tuple[Any, ...]) -> bool:
    for part in path[:-1]:
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            return False
    if not path or not isinstance(values, (dict, list)):
        return False
    try:
        del values[path[-1]]
    except (KeyError, IndexError):
        return False
    return True
