"""The package's own files, as the architecture tests read them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "iterpo"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Source:
    """One module: its place and its syntax tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """Path within the package, with slashes: ``domain/decision.py``."""
        return self.path.relative_to(SRC).as_posix()

    @property
    def module(self) -> str:
        """Dotted name."""
        parts = self.path.relative_to(SRC.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def exported(self) -> list[str] | None:
        """The literal ``__all__``; None where there is none."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and _targets(node) == ["__all__"]:
                return list(ast.literal_eval(node.value))
        return None

    @property
    def defined(self) -> set[str]:
        """Names that the module itself defines at its top level, imports left out."""
        names: set[str] = set()
        for node in self.tree.body:
            if isinstance(node, Function | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                names.update(_targets(node))
        return names

    @property
    def called(self) -> set[str]:
        """Functions and classes among them."""
        return {n.name for n in self.tree.body if isinstance(n, Function | ast.ClassDef)}

    @property
    def imported(self) -> set[str]:
        """Names bound by top-level imports."""
        return {
            (alias.asname or alias.name).split(".")[0]
            for node in self.tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }

    def functions(self) -> Iterator[tuple[str, Function]]:
        """Every function and method with its dotted name within the module."""
        yield from _functions(self.tree, "")


def read(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    return Source(path, text, ast.parse(text, str(path)))


def package() -> list[Source]:
    """All modules of the package, by path."""
    return [read(path) for path in sorted(SRC.rglob("*.py"))]


def registry(path: Path, name: str) -> dict[str, str]:
    """A ``{"name": "module:Class"}`` literal of a module, read without importing it."""
    for node in read(path).tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and _targets(node) == [name]:
            if node.value is None:
                break
            value = node.value
            if isinstance(value, ast.Call) and value.args:  # MappingProxyType({...})
                value = value.args[0]
            return dict(ast.literal_eval(value))
    raise AssertionError(f"{path} has no literal {name}")


def fenced(text: str, heading: str) -> str:
    """The first fenced block below a Markdown heading."""
    found = re.search(rf"^#+ {re.escape(heading)}$.*?^```\w*\n(.*?)^```", text, re.M | re.S)
    assert found, f"no fenced block below {heading!r}"
    return found.group(1)


def named_blocks(page: Path) -> dict[str, str]:
    """Fenced blocks of a Markdown page by the name in the comment before them."""
    text = page.read_text(encoding="utf-8")
    return dict(re.findall(r"^<!-- (.+?) -->\n```\w*\n(.*?)^```", text, re.M | re.S))


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [t.id for t in targets if isinstance(t, ast.Name)]


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield prefix + child.name, child
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)
