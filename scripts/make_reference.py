"""Writes the pages that can be derived from the code, so that they can't drift from it.

python scripts/make_reference.py            write them
python scripts/make_reference.py --check    say which are stale, and fail if any is
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["main", "pages", "stale"]

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src" / "iterpo"
REFERENCE = ROOT / "docs" / "reference"

STORY = [
    "errors.py",
    "artifacts.py",
    "config",
    "domain",
    "models",
    "environments",
    "agents",
    "store",
    "collect",
    "measure",
    "policy_evaluation",
    "policy_improvement",
    "methods",
    "experiments",
    "report",
    "api.py",
    "testing",
    "cli",
]
"""Top-level names in the order in which the README tells them; others follow by name."""

NOTICE = "<!-- Written by scripts/make_reference.py (`make reference`). -->\n"


def pages() -> dict[Path, str]:
    """Every derived page with the content that it should have."""
    readme = ROOT / "README.md"
    return {
        readme: _with_tree(readme.read_text(encoding="utf-8")),
        REFERENCE / "cli.md": _cli(),
        REFERENCE / "config.md": _config(),
        REFERENCE / "environments.md": _registered(
            "Environments", "iterpo.environments", "Also printed by `iterpo envs`."
        ),
        REFERENCE / "methods.md": _registered(
            "Methods", "iterpo.methods", "`iterpo methods NAME` prints the same."
        ),
    }


def stale() -> list[Path]:
    """Pages whose file differs from what the code says."""
    return [
        path
        for path, text in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def main(arguments: list[str]) -> int:
    """Write or check; returns the exit status."""
    old = stale()
    if arguments == ["--check"]:
        for path in old:
            print(f"stale: {path.relative_to(ROOT)} (run `make reference`)")
        return 1 if old else 0
    for path, text in pages().items():
        if path in old:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 0


# --- the README's tree


def _with_tree(readme: str) -> str:
    block = "```\nsrc/iterpo/\n" + "".join(_tree(SRC, 1)) + "```"
    written, n = re.subn(r"```\nsrc/iterpo/\n.*?```", lambda _: block, readme, flags=re.DOTALL)
    if n != 1:
        raise SystemExit("README.md needs exactly one code block that starts with src/iterpo/")
    return written


def _tree(folder: Path, depth: int) -> Iterator[str]:
    for path in sorted(_members(folder), key=_story_order if depth == 1 else _by_name):
        name = "  " * depth + path.name + ("/" if path.is_dir() else "")
        yield f"{name:<26} {_comment(path)}".rstrip() + "\n"
        if path.is_dir() and (path / "__init__.py").exists():
            yield from _tree(path, depth + 1)


def _members(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith(("__", ".")) or path.name == "py.typed":
            continue
        shown = any(path.iterdir()) if path.is_dir() else path.suffix in (".py", ".yaml")
        if shown:
            yield path


def _story_order(path: Path) -> tuple[int, str]:
    return (STORY.index(path.name) if path.name in STORY else len(STORY), path.name)


def _by_name(path: Path) -> tuple[bool, str]:
    return (path.is_dir(), path.name)


def _comment(path: Path) -> str:
    if path.suffix == ".yaml":
        found = re.match(r"# ?(.*)", path.read_text(encoding="utf-8"))
        return found.group(1).rstrip(".") if found else ""
    source = path / "__init__.py" if path.is_dir() else path
    if source.exists():
        docstring = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
        return docstring.split("\n")[0].rstrip(".").replace("``", "")
    names = sorted(p.name for p in path.iterdir() if not p.name.startswith((".", "__")))
    return ", ".join(names)


# --- docs/reference/cli.md


def _cli() -> str:
    typer = importlib.import_module("typer")
    app = importlib.import_module("iterpo.cli.main").app
    root = typer.main.get_command(app)
    text = [f"# Command line\n\n{NOTICE}\n{_prose(root.help)}\n"]
    for words, command in _commands(root, ("iterpo",)):
        text.append(f"\n## {' '.join(words)}\n\n{_prose(command.help)}\n")
        if command.epilog:
            text.append(f"\n{_examples(command.epilog)}\n")
        rows = [_parameter(p) for p in command.params if p.name not in ("help",)]
        if rows:
            text.append("\n| give | default | meaning |\n|---|---|---|\n" + "".join(rows))
    return "".join(text)


def _commands(group: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if getattr(command, "hidden", False):
            continue
        yield (*words, name), command
        if hasattr(command, "commands"):
            yield from _commands(command, (*words, name))


def _parameter(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        names = parameter.metavar or parameter.name.upper()
    else:
        names = ", ".join((*parameter.opts, *parameter.secondary_opts))
    default = "required" if parameter.required else parameter.default
    if callable(default) or default in (None, (), []):
        default = ""
    return f"| `{names}` | {_cell(default)} | {_cell(getattr(parameter, 'help', '') or '')} |\n"


def _prose(text: str | None) -> str:
    return inspect.cleandoc(text or "").replace("\x08", "").replace("``", "`").strip()


def _examples(epilog: str) -> str:
    lines = [line.replace("\\[", "[") for line in epilog.split("\n\n")[1:]]
    return "```\n" + "\n".join(lines) + "\n```"


def _cell(value: object) -> str:
    return " ".join(str(value).replace("|", "\\|").replace("``", "`").split())


# --- docs/reference/config.md


def _config() -> str:
    plan = importlib.import_module("iterpo.experiments.plan").Plan
    schema = importlib.import_module("iterpo.config").json_schema(plan)
    lines = [
        "# Plan keys\n\n",
        NOTICE,
        "\nA plan is a YAML file; every key below has the default shown, and any of them can be "
        "set on the command line: `--set a.b=c`. Unknown keys are refused. "
        "`iterpo config schema` prints the JSON Schema for an editor.\n",
        "\nPrecedence, lowest first: defaults, file, environment (`ITERPO__A__B=c` sets `a.b`), "
        "`--set`. Two more variables name places: `ITERPO_CACHE` (converted models) and "
        "`ITERPO_DATA` (raw data sets).\n",
        "\n| key | type | default | meaning |\n|---|---|---|---|\n",
    ]
    lines.extend(_keys(schema, schema.get("$defs", {}), plan().as_dict()))
    return "".join(lines)


def _keys(
    part: Mapping[str, Any], defs: Mapping[str, Any], values: Mapping[str, Any], prefix: str = ""
) -> Iterator[str]:
    for name, field in part.get("properties", {}).items():
        inner = _definition(field, defs)
        # Of a section that is null by default, the schema knows the keys' own defaults.
        value = values.get(name, field.get("default"))
        unsaid = name not in values and "default" not in field
        default = "" if unsaid or (inner and value is not None) else f"`{json.dumps(value)}`"
        meaning = _cell(field.get("description", ""))
        yield f"| `{prefix}{name}` | {_cell(_kind(field))} | {_cell(default)} | {meaning} |\n"
        if inner is not None:
            yield from _keys(inner, defs, value or {}, f"{prefix}{name}.")


def _definition(field: Mapping[str, Any], defs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for option in (field, *field.get("anyOf", ()), *field.get("allOf", ())):
        name = option.get("$ref", "").rsplit("/", 1)[-1]
        found: Mapping[str, Any] | None = defs.get(name)
        if found is not None and "properties" in found:
            return found
    return None


def _kind(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if "anyOf" in field:
        return " or ".join(_kind(option) for option in field["anyOf"])
    if "$ref" in field:
        return "mapping"
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    return {
        "object": "mapping",
        "integer": "whole number",
        "boolean": "true or false",
        "null": "null",
        "string": "text",
    }.get(field.get("type", "any"), str(field.get("type", "any")))


# --- docs/reference/environments.md, methods.md


def _registered(title: str, package: str, note: str) -> str:
    text = [f"# {title}\n\n{NOTICE}\n{note}\n"]
    registry = importlib.import_module(package).REGISTRY
    for name, target in registry.items():
        module, _, attribute = target.partition(":")
        loaded = importlib.import_module(module)
        cls = getattr(loaded, attribute)
        text.append(f"\n## {name}\n\n`{target}`\n\n{_markdown(loaded.__doc__)}\n")
        if package == "iterpo.methods":
            text.append(f"\n{_markdown(cls.__doc__)}\n")
        options = getattr(cls, "options_type", None) or getattr(cls, "Options", None)
        if options is not None:
            text.append("\n| option | type | default | meaning |\n|---|---|---|---|\n")
            schema = importlib.import_module("iterpo.config").json_schema(options)
            values = dataclasses.asdict(options())
            text.extend(_keys(schema, schema.get("$defs", {}), values))
    return "".join(text)


def _markdown(docstring: str | None) -> str:
    """A docstring as Markdown; the indented lines of a data sheet become a list."""
    out: list[str] = []
    for line in inspect.cleandoc(docstring or "").replace("``", "`").splitlines():
        entry = re.fullmatch(r"    (\w[\w ]*): (.*)", line)
        if entry:
            out.append(f"- **{entry.group(1)}:** {entry.group(2)}")
        elif line.startswith("        ") and out:
            out[-1] += " " + line.strip()
        elif line != "Data sheet":
            out.append(line)
    return "\n".join(out)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
