"""The versions that a run was made with: kept beside its plan, since they have a say in numbers."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from iterpo import environments
from iterpo.artifacts import write_atomic
from iterpo.experiments.plan import Plan
from iterpo.methods.base import PLUGINS as METHODS

__all__ = [
    "VERSIONS",
    "Versions",
    "changed",
    "joined",
    "keep_versions",
    "plugins",
    "present",
    "read_versions",
]

VERSIONS = "versions.json"
"""In a run folder: the versions of every stretch of work, in order; most runs have one."""

Versions = Mapping[str, str]
"""Version by package, and that of ``python``; empty where they were not kept."""

_PACKAGES = ("iterpo", "torch", "transformers", "trl", "peft", "numpy")


def present(plan: Plan | None = None) -> dict[str, str]:
    """What is installed here, of all that has a say in the numbers.

    Args:
        plan: Its game and method, where other packages add them, are told with a hash of their
            code: such packages are often changed without another version.
    """
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found if plan is None else found | plugins(plan)


def plugins(plan: Plan) -> dict[str, str]:
    """The packages that add the game and the method of a plan, with versions and code."""
    used = (METHODS.code(plan.method.name), environments.PLUGINS.code(plan.environment.name))
    return dict(told for told in used if told is not None)


def read_versions(folder: Path) -> tuple[dict[str, str], ...]:
    """What the run in a folder was made with, in order; nothing where an earlier iterpo began it.

    An unreadable file counts as none: no result needs it.
    """
    try:
        told = json.loads((folder / VERSIONS).read_text(encoding="utf-8"))
        return tuple({str(k): str(v) for k, v in one.items()} for one in told)
    except (OSError, ValueError, AttributeError, TypeError):
        return ()


def keep_versions(folder: Path, plan: Plan, *, begun: bool) -> str:
    """Note the versions that go on from here, where they are others than before.

    Args:
        folder: Run folder.
        plan: Plan of the run.
        begun: Whether it holds work already, so that what it says of earlier versions counts.

    Returns:
        A warning of one line; empty where nothing has changed, or nothing was kept.
    """
    known, now = read_versions(folder) if begun else (), present(plan)
    if known and known[-1] == now:
        return ""
    told = changed(known[-1], now) if known else ""
    if begun and not known:
        known = ({},)  # of an earlier iterpo: what stands here was not made with these
    write_atomic(folder / VERSIONS, json.dumps([*known, now], indent=1, sort_keys=True) + "\n")
    return told


def changed(before: Versions, now: Versions, *, goes_on: bool = True) -> str:
    """A warning of one line; empty where they are the same, or nothing is known of before.

    Args:
        before: What it was made with.
        now: What is here.
        goes_on: Whether more is made now, or what stands there is left as it is.
    """
    other = [
        f"{name} {before.get(name, 'absent')} -> {now.get(name, 'absent')}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
    told = (
        "warning: goes on with other versions than what stands here was made with: "
        if goes_on
        else "warning: what is finished stays, though it was made by other code; to make cells "
        "again, delete their folders: "
    )
    return told + ", ".join(other) if before and other else ""


def joined(stretches: Iterable[Mapping[Any, Any]]) -> dict[str, str]:
    """All versions by package, those that differ behind each other: ``5.23.0, 5.24.0``."""
    found: dict[str, list[str]] = {}
    for one in stretches:
        for name, told in one.items():
            seen = found.setdefault(str(name), [])
            seen += [v for v in str(told).split(", ") if v not in seen]
    return {name: ", ".join(seen) for name, seen in sorted(found.items())}
