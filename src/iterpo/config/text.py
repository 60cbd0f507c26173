"""YAML text with YAML 1.2 scalars to plain values and back, and ``a.b=c`` settings on top."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from iterpo.errors import ConfigError

__all__ = ["all_in_one", "override", "read_yaml", "shown", "to_yaml"]

_NUMBER = re.compile(
    r"^[-+]?(?:\d[\d_]*\.?[\d_]*(?:[eE][-+]?\d+)|\d[\d_]*\.[\d_]*|\.\d[\d_]*(?:[eE][-+]?\d+)?"
    r"|\.(?:inf|Inf|INF))$|^\.(?:nan|NaN|NAN)$"
)


def _resolve_like_yaml_1_2(cls: Any) -> None:
    # YAML 1.1 reads 1e-4 as text, "no" as false, 1:30 as 90 and 2026-11-30 as a date. One table
    # for reading and writing, so that what is written reads back as the same value.
    cls.yaml_implicit_resolvers = {}
    cls.add_implicit_resolver(
        "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"
    )
    cls.add_implicit_resolver(
        "tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:\d[\d_]*|0x[0-9a-fA-F_]+)$"), "-+0123456789"
    )
    cls.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, "-+0123456789.")
    cls.add_implicit_resolver(
        "tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]
    )


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=deep)
            if isinstance(key, (str, int)) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: Any) -> int:
        # PyYAML reads 010 as octal 8; a seed of 010 is ten.
        text = str(self.construct_scalar(node)).replace("_", "")
        return int(text, 16) if "x" in text else int(text)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


_resolve_like_yaml_1_2(_Loader)
_resolve_like_yaml_1_2(_Dumper)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # YAML also breaks lines at these, and folds them away in other styles than the quoted one.
    style = '"' if set(text) & set("\x85\u2028\u2029\ufeff") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML (1.2 scalars) or JSON file that holds one mapping.

    Raises:
        ConfigError: if it is missing, is not YAML (with line and column), repeats a key or does
            not hold a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"can't read {path}: {reason}. Name a YAML file.") from error
    value = _load(text, str(path))
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(
            f"{path} holds {shown(value)}; accepted is a mapping of keys to values, "
            "such as `rounds: 4` on a line."
        )
    return value


def override(mapping: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """A copy of ``mapping`` with ``a.b=c`` settings applied in order, values read as YAML.

    >>> override({"q": {"lr": 0.1}}, ["q.lr=1e-4", "q.heads=null", "seed=7"])
    {'q': {'lr': 0.0001, 'heads': None}, 'seed': 7}

    Raises:
        ConfigError: listing every setting that has no ``=``, no key, or goes through a value
            that is no mapping.
    """
    out = copy.deepcopy(dict(mapping))
    mistakes: list[str] = []
    for setting in settings:
        key, equals, text = setting.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            mistakes.append(f"{setting!r}: accepted is key=value with a dotted key, as seed=7")
            continue
        try:
            value = _load(text, f"the value of {key}")
        except ConfigError as error:
            mistakes.append(str(error))
            continue
        target: Any = out
        for depth, part in enumerate(parts[:-1], start=1):
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                inner = ".".join(parts[:depth])
                mistakes.append(f"{key}: {inner} holds {shown(target)}, which has no keys inside")
                break
        else:
            target[parts[-1]] = value
    if mistakes:
        raise all_in_one("the settings given with --set or in the environment", mistakes)
    return out


def to_yaml(values: Any) -> str:
    """Plain values as YAML text that ``read_yaml`` reads back unchanged; keys keep their order."""
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def all_in_one(source: str, mistakes: Sequence[str]) -> ConfigError:
    """An error that lists every mistake on its own line."""
    count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
    return ConfigError("\n".join([f"{source}: {count}", *(f"  {m}" for m in mistakes)]))


def shown(value: Any) -> str:
    """A given value with its kind, so that "4" and 4 look different."""
    text = value.isoformat() if hasattr(value, "isoformat") else json.dumps(value, default=str)
    kind = {str: "text", bool: "true/false", int: "a whole number", float: "a number"}
    cut = text if len(text) <= 60 else text[:57] + "..."
    return f"{cut} ({kind[type(value)]})" if type(value) in kind else cut


def _load(text: str, source: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader with stricter scalars)
    except (yaml.YAMLError, ValueError) as error:
        detail = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
        raise ConfigError(f"{source} is not valid YAML: {detail}") from error
