"""Plugins: names of one kind, each with a class of ours or of another installed package."""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from iterpo.errors import MissingExtraError, UnknownNameError

__all__ = ["Plugins", "unchecked"]

_UNCHECKED: ContextVar[bool] = ContextVar("names are taken as they are", default=False)


@contextmanager
def unchecked() -> Iterator[None]:
    """Inside, no name is unknown: for what was made with packages that may be gone since."""
    token = _UNCHECKED.set(True)
    try:
        yield
    finally:
        _UNCHECKED.reset(token)


@dataclass(frozen=True, slots=True)
class Plugins:
    """What can be named where a plan asks for one of a kind."""

    kind: str
    """What they are, e.g. ``environment``."""
    group: str
    """Entry-point group under which other packages register theirs."""
    built_in: Mapping[str, str]
    """Name -> "module:Class" of ours; they win."""

    def names(self) -> tuple[str, ...]:
        """All names, ours first."""
        others = {entry.name for entry in entry_points(group=self.group)}
        return (*self.built_in, *sorted(others - set(self.built_in)))

    def unknown(self, name: str) -> str:
        """What to tell whoever gives this name; empty where it is registered, or ``unchecked``."""
        known = self.names()
        if name in known or _UNCHECKED.get():
            return ""
        near = difflib.get_close_matches(name, known, 1)
        return (
            f"there is no {self.kind} {name!r}; there are {', '.join(sorted(known))}."
            + (f" Did you mean {near[0]}?" if near else "")
            + " If another package adds it, install that beside iterpo (pip install PACKAGE). If "
            "it is installed, its pyproject.toml lacks the name under "
            f"[project.entry-points.{self.group!r}]: add it there, and install it again."
        )

    def shadowed(self) -> list[str]:
        """Names that another package registers in vain, since they are ours; a line for each."""
        return [
            f"the name {entry.name} is iterpo's own; that of {_package(entry)} is not used"
            for entry in entry_points(group=self.group)
            if entry.name in self.built_in
        ]

    def code(self, name: str) -> tuple[str, str] | None:
        """Package of a plug-in, and its version with a hash of its code; None for one of ours.

        The hash covers all Python files of the package that the class lies in, since an editable
        install keeps its version while it changes. Nothing of it is run.
        """
        if name in self.built_in:
            return None
        for entry in entry_points(group=self.group):
            if entry.name == name:
                dist = entry.dist
                told = dist.version if dist else "unknown version"
                known = dist.name if dist else entry.module.partition(".")[0]
                return known, f"{told} (code {_code_sha256(entry.module)[:8]})"
        return None

    def load(self, name: str) -> Any:
        """The class of that name.

        Raises:
            UnknownNameError: if it is not registered.
            MissingExtraError: if its package is there, but can't be imported.
        """
        if name in self.built_in:
            module, _, attribute = self.built_in[name].partition(":")
            return getattr(import_module(module), attribute)
        for entry in entry_points(group=self.group):
            if entry.name == name:
                return self._of_another_package(entry)
        raise UnknownNameError(self.unknown(name))

    def _of_another_package(self, entry: EntryPoint) -> Any:
        try:
            return entry.load()
        except Exception as error:  # its code may fail in any way
            raise MissingExtraError(
                f"{self.kind} {entry.name!r} of {_package(entry)} can't be loaded from "
                f"{entry.value} ({type(error).__name__}: {error}). Install what it needs, mend it, "
                "or install the package in a version that fits."
            ) from error


def _package(entry: EntryPoint) -> str:
    return f"package {entry.dist.name}" if entry.dist else "another package"


def _code_sha256(module: str) -> str:
    spec = importlib.util.find_spec(module.partition(".")[0])
    digest = hashlib.sha256()
    if spec is None:
        return digest.hexdigest()
    folders = [Path(place) for place in spec.submodule_search_locations or ()]
    found = [(f.relative_to(at).as_posix(), f) for at in folders for f in at.rglob("*.py")]
    if not folders and spec.origin:
        found = [(Path(spec.origin).name, Path(spec.origin))]
    for name, file in sorted(found):
        digest.update(f"{name}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    return digest.hexdigest()
