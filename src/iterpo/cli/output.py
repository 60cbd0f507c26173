"""How commands print: tables for people, JSON for programs, remarks on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "console",
    "estimate",
    "examples",
    "facts_text",
    "number",
    "print_json",
    "print_table",
    "remark",
    "say",
]

_WIDTH_WHEN_PIPED = 140


def examples(*commands: str) -> str:
    """The epilog of a command's help: one example a line."""
    shown = (command.replace("[", r"\[") for command in commands)
    return "[bold]Examples[/bold]\n\n" + "\n\n".join(shown)


def console() -> Console:
    """Standard output for people; wide where no terminal would cut it."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _WIDTH_WHEN_PIPED
    return Console(width=width, soft_wrap=False, highlight=False)


def print_json(value: Any) -> None:
    """One JSON value on standard output."""
    sys.stdout.write(json.dumps(value, indent=1, default=str, ensure_ascii=False) + "\n")


def say(text: str = "") -> None:
    """A line on standard output, as it is."""
    sys.stdout.write(text + "\n")


def remark(text: str) -> None:
    """A line on standard error, so that piped output stays clean."""
    sys.stderr.write(text + "\n")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table; columns after the first are right-aligned where they hold numbers."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title) or None, title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        cells = [row[i] for row in rows]
        numeric = i > 0 and all(_numeric(cell) for cell in cells)
        table.add_column(escape(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell if isinstance(cell, str) else number(cell)) for cell in row))
    console().print(table)


def number(value: Any) -> str:
    """A number for people: three decimals, whole numbers as they are, a dash for none."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def facts_text(facts: Mapping[str, Any]) -> str:
    """Facts of a scenario on one line, numbers with three decimals at most."""
    return ", ".join(f"{key} {_rounded(value)}" for key, value in facts.items())


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rounded(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(v) for v in value]
    return round(value, 3) if isinstance(value, float) else value


def estimate(value: Mapping[str, Any] | None) -> str:
    """A mean with its standard error, as ``0.834 ± 0.021``."""
    if not value or value.get("mean") is None:
        return "-"
    se = value.get("se")  # a single kernel shows no spread
    return f"{value['mean']:.3f} ± " + ("?" if se is None else f"{se:.3f}")


def _numeric(cell: Any) -> bool:
    return not isinstance(cell, str) or cell[:1].isdigit() or cell[:1] in "-+"
