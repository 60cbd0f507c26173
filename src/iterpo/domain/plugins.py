"""Plugins: names of one kind, each with a class of ours or of another installed package."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from iterpo.errors import MissingExtraError, UnknownNameError

__all__ = ["Plugins"]


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
        """What to tell whoever gives this name; empty where it is registered."""
        known = self.names()
        if name in known:
            return ""
        near = difflib.get_close_matches(name, known, 1)
        return (
            f"there is no {self.kind} {name!r}; there are {', '.join(sorted(known))}."
            + (f" Did you mean {near[0]}?" if near else "")
            + " If another package adds it, install that beside iterpo (pip install PACKAGE); it "
            f"registers the name under the entry-point group {self.group!r}."
        )

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
        except (ImportError, AttributeError) as error:
            package = f"package {entry.dist.name}" if entry.dist else "another package"
            raise MissingExtraError(
                f"{self.kind} {entry.name!r} of {package} can't be loaded from {entry.value} "
                f"({type(error).__name__}: {error}). Install what it needs, or install the package "
                "again in a version that fits."
            ) from error
