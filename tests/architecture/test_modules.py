"""Size caps, names and form of every module."""

from __future__ import annotations

import ast
import re

import pytest

from architecture.sources import Source, package

MAX_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_ARGUMENTS = 8

# These lists may only shrink; an entry that is no longer needed fails the test.
LONG_MODULES: frozenset[str] = frozenset()
LONG_FUNCTIONS: frozenset[str] = frozenset()
MANY_ARGUMENTS: frozenset[str] = frozenset()

FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "evaluation"}

SOURCES = package()
BY_NAME = pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.name)


def isort_style(name: str) -> tuple[int, list[tuple[int, int, str]]]:
    """Constants, then classes, then the rest, each in natural order (as ruff sorts them)."""
    group = 0 if len(name) > 1 and name.isupper() else 1 if name[0].isupper() else 2
    parts = re.findall(r"\d+|\D+", name)
    return group, [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in parts]


def arguments_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    a = node.args
    names = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def is_command(source: Source) -> bool:
    """A function of a command file takes one argument for each option that people may type."""
    return source.name.startswith("cli/")


def test_modules_stay_short() -> None:
    long = {s.name for s in SOURCES if len(s.text.splitlines()) > MAX_LINES}
    assert long == LONG_MODULES, f"more than {MAX_LINES} lines, or no longer so: split, or shrink"


def test_functions_stay_short() -> None:
    long = {
        f"{s.name}:{name}"
        for s in SOURCES
        for name, node in s.functions()
        if (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES
    }
    assert long == LONG_FUNCTIONS, f"more than {MAX_FUNCTION_LINES} lines, or no longer so"


def test_functions_take_few_arguments() -> None:
    many = {
        f"{s.name}:{name}"
        for s in SOURCES
        if not is_command(s)
        for name, node in s.functions()
        if arguments_of(node) > MAX_ARGUMENTS
    }
    assert many == MANY_ARGUMENTS, f"more than {MAX_ARGUMENTS} arguments: take a config value"


def test_no_module_is_named_after_nothing() -> None:
    bad = [s.name for s in SOURCES if FORBIDDEN_NAMES & set(s.module.split("."))]
    assert not bad, "a function lives with the noun that it serves"


@BY_NAME
def test_a_module_says_what_it_is(source: Source) -> None:
    docstring = ast.get_docstring(source.tree)
    assert docstring, f"{source.name} has no docstring"
    first = docstring.split("\n\n")[0]
    assert first.rstrip().endswith((".", ":", "?")), f"{source.name}: a whole sentence, please"
    assert "\n" not in first.strip(), f"{source.name}: the first sentence takes one line"


@BY_NAME
def test_public_names_are_declared(source: Source) -> None:
    exported = source.exported
    functions = {n for n in source.called if not n.startswith("_")}
    if source.path.name == "__init__.py":
        if exported is None:
            assert not functions, f"{source.name} defines {functions} without __all__"
            return
        lazy = "__getattr__" in source.defined
        bound = source.defined | source.imported
        assert lazy or set(exported) <= bound, set(exported) - bound
        assert functions <= set(exported), functions - set(exported)
    elif source.path.name == "__main__.py":
        return
    else:
        assert exported is not None, f"{source.name} has no __all__"
        assert set(exported) <= source.defined | source.imported, set(exported) - source.defined
        assert functions <= set(exported), functions - set(exported)
    assert exported == sorted(exported, key=isort_style), f"{source.name}: __all__ is not sorted"


def test_modules_share_declared_names_only() -> None:
    """A constant or an alias is public as soon as another module imports it."""
    exported = {s.module: set(s.exported or ()) | {"__version__"} for s in SOURCES}
    undeclared = {
        f"{s.name}:{node.lineno} {node.module}.{alias.name}"
        for s in SOURCES
        for node in ast.walk(s.tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "") in exported
        for alias in node.names
        if alias.name not in exported[node.module or ""]
        and f"{node.module}.{alias.name}" not in exported
    }
    assert not undeclared


@BY_NAME
def test_imports_are_absolute_and_annotations_lazy(source: Source) -> None:
    relative = [n for n in ast.walk(source.tree) if isinstance(n, ast.ImportFrom) and n.level]
    assert not relative
    if source.path.name not in ("__init__.py", "__main__.py"):
        future = [n for n in source.tree.body if isinstance(n, ast.ImportFrom)]
        assert any(n.module == "__future__" for n in future), f"{source.name}: from __future__"


def test_only_the_command_line_prints() -> None:
    printing = [
        f"{s.name}:{node.lineno}"
        for s in SOURCES
        if not s.name.startswith("cli/")
        for node in ast.walk(s.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert not printing


def test_the_environment_is_read_at_the_edge_only() -> None:
    reading = [
        f"{s.name}:{node.lineno}"
        for s in SOURCES
        if not s.name.startswith(("cli/", "config"))
        for node in ast.walk(s.tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and node.attr in ("environ", "getenv")
    ]
    assert not reading, "settings come in as arguments"


def test_the_checks_can_fail() -> None:
    """The measures themselves, on a module that breaks every rule."""
    tree = ast.parse(
        "from . import x\n"
        "def f(a, b, c, d, e, *, g, h, i, j):\n" + "    pass\n" * 60 + "def _g(self): pass\n"
    )
    source = Source(SOURCES[0].path, "", tree)
    (name, node), _ = source.functions()
    assert (name, arguments_of(node)) == ("f", 9)
    assert (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES
    assert source.defined == {"f", "_g"}
    assert sorted(["b", "Ab10", "Ab2", "MAX"], key=isort_style) == ["MAX", "Ab2", "Ab10", "b"]
