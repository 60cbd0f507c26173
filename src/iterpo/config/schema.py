"""What a configuration class accepts: its JSON Schema, and its fields in words."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import pydantic

from iterpo.errors import ConfigError

__all__ = ["accepted", "adapter", "all_keys", "hints_of", "json_schema", "nested"]

T = TypeVar("T")


def json_schema(cls: type) -> dict[str, Any]:
    """JSON Schema of a dataclass, with the docstring under each field as its description."""
    schema: dict[str, Any] = adapter(cls).json_schema()
    classes = {c.__name__: c for c in _classes_in(cls)}
    for name, part in (*schema.get("$defs", {}).items(), (cls.__name__, schema)):
        known = classes.get(name)
        if known is None or "properties" not in part:
            continue
        part["additionalProperties"] = False
        part["description"] = inspect.cleandoc(known.__doc__ or "").split("\n\n")[0]
        for field, text in _field_docs(known).items():
            if field in part["properties"]:
                part["properties"][field]["description"] = text
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def adapter(cls: type[T]) -> pydantic.TypeAdapter[T]:
    """What checks plain values against a dataclass.

    Raises:
        ConfigError: if a field is of a type that no plain value has.
    """
    try:
        return pydantic.TypeAdapter(cls)
    except pydantic.errors.PydanticUserError as error:
        raise ConfigError(
            f"{cls.__name__} has a field of a type that plans can't hold "
            f"({str(error).splitlines()[0]}); accepted: numbers, texts, true/false, lists, "
            "mappings, Literal, and dataclasses of them"
        ) from error


def nested(hint: Any) -> type | None:
    """The dataclass that a field holds, through ``| None``; None for a plain value."""
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    found = [o for o in options if isinstance(o, type) and dataclasses.is_dataclass(o)]
    return found[0] if len(found) == 1 else None


def hints_of(cls: type) -> dict[str, Any]:
    """Resolved type of every field that may be given."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init}


def all_keys(cls: type, prefix: str = "") -> Iterator[str]:
    """Every dotted key of a class, nested classes included."""
    for name, hint in hints_of(cls).items():
        yield prefix + name
        if inner := nested(hint):
            yield from all_keys(inner, f"{prefix}{name}.")


def accepted(hint: Any) -> str:
    """What a field of this type takes, in words for people who do not read Python."""
    plain = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    if hint in plain:
        return plain[hint]
    if hint is type(None):
        return "null"
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(str(v) for v in typing.get_args(hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "one of " + ", ".join(str(member.value) for member in hint)
    if _is_union(hint):
        return " or ".join(accepted(option) for option in typing.get_args(hint))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return f"a mapping with the keys {', '.join(hints_of(hint))}"
    origin = typing.get_origin(hint) or hint
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a mapping"
    if isinstance(origin, type) and issubclass(origin, Iterable) and typing.get_args(hint):
        return f"a list of {accepted(typing.get_args(hint)[0])}"
    return "text" if hint is Path else str(getattr(hint, "__name__", hint))


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (Union, types.UnionType)


def _classes_in(cls: type) -> Iterator[type]:
    yield cls
    for hint in hints_of(cls).values():
        if inner := nested(hint):
            yield from _classes_in(inner)


def _field_docs(cls: type) -> dict[str, str]:
    """The docstring under each field, read from the source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    return {
        field.target.id: inspect.cleandoc(doc.value.value)
        for field, doc in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(doc, ast.Expr)
        and isinstance(doc.value, ast.Constant)
        and isinstance(doc.value.value, str)
    }
