"""Table: numbers with their columns, for a page, for Markdown and for CSV; each text is made safe.

Whoever spoke in a conversation, named a kernel or wrote a records file may be no friend: no text
becomes markup of a page, structure of a Markdown table, or a formula of a spreadsheet.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from iterpo.measure.intervals import Interval

__all__ = [
    "Cell",
    "Column",
    "Estimate",
    "Kind",
    "Table",
    "by_first",
    "clean",
    "in_markdown",
    "shown",
]

Kind = Literal["text", "count", "number", "signed", "share", "mean", "percent", "difference", "p"]
"""How the cells of a column are told."""

# Control characters, lone surrogates, and marks that turn the direction of what follows.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]"
)
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#!|~@]|(?<=[a-z]):(?=//))")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its standard error, and what that is over."""

    interval: Interval
    """The mean; its standard error is NaN where nothing shows a spread."""
    over: Literal["seeds", "kernels", "nothing"]
    """Seeds where there are several, else the kernels of the one run."""


Cell = str | int | float | Interval | Estimate | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column and how its cells are told."""

    title: str
    """Heading."""
    kind: Kind = "text"
    """Kind of its cells."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns; what is missing in a cell is a dash."""

    name: str
    """Stem of its files."""
    title: str
    """What it tells, in a line."""
    columns: tuple[Column, ...]
    """Columns."""
    rows: tuple[tuple[Cell, ...], ...]
    """Cells, a tuple a row."""
    note: str = ""
    """How to read it."""
    best: frozenset[tuple[int, int]] = frozenset()
    """Cells to stand out: row, column."""
    rules: frozenset[int] = frozenset()
    """Rows that begin a new group."""
    folded: bool = False
    """Whether a page shows it on demand: many numbers, below a plot of them."""

    def cells(self) -> tuple[tuple[str, ...], ...]:
        """What people read, as plain text."""
        return tuple(
            tuple(shown(cell, column.kind) for cell, column in zip(row, self.columns, strict=True))
            for row in self.rows
        )

    def to_markdown(self) -> str:
        """A heading, the table and its note."""
        lines = [f"### {in_markdown(self.title)}", ""]
        lines.append("| " + " | ".join(in_markdown(c.title) for c in self.columns) + " |")
        lines.append("|" + "|".join("---" if c.kind == "text" else "---:" for c in self.columns))
        lines[-1] += "|"
        for i, row in enumerate(self.cells()):
            told = [
                f"**{in_markdown(cell)}**" if (i, j) in self.best else in_markdown(cell)
                for j, cell in enumerate(row)
            ]
            lines.append("| " + " | ".join(told) + " |")
        return "\n".join([*lines, *(["", in_markdown(self.note)] if self.note else []), ""])

    def to_csv(self) -> str:
        """Plain numbers; a mean takes three columns, a difference as many."""
        sink = io.StringIO()
        writer = csv.writer(sink, lineterminator="\n")
        writer.writerow(_guarded(t) for c in self.columns for t in _titles(c))
        for row in self.rows:
            writer.writerow(
                value
                for cell, column in zip(row, self.columns, strict=True)
                for value in _values(cell, column.kind)
            )
        return sink.getvalue()


def by_first(rows: Sequence[Sequence[Cell]]) -> frozenset[int]:
    """Rows whose first cell is another than that above: groups for ``Table.rules``.

    >>> sorted(by_first([("a",), ("a",), ("b",)]))
    [0, 2]
    """
    return frozenset(i for i, row in enumerate(rows) if i == 0 or row[0] != rows[i - 1][0])


def clean(text: str) -> str:
    """Text without characters that steer a terminal, a reader's eye or a parser."""
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text)


def shown(cell: Cell, kind: Kind) -> str:
    """A cell as people read it.

    >>> shown(-0.25, "signed"), shown(0.0004, "p"), shown(None, "number")
    ('−0.250', '<0.001', '–')
    """
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return "–"
    if isinstance(cell, str):
        return clean(cell)
    return _SHOWN[kind](cell).replace("-", "\N{MINUS SIGN}")


def _mean(cell: Cell, factor: float = 1.0, digits: int = 3) -> str:
    mean, se, over = _parts(cell)
    text = f"{mean * factor:.{digits}f}"
    if not math.isnan(se):
        text += f" ± {se * factor:.{digits}f}"
    return text + ("°" if over == "kernels" else "")


def _difference(cell: Cell) -> str:
    if not isinstance(cell, Interval):
        return str(cell)
    if not math.isfinite(cell.low):
        return f"{cell.mean:+.3f} (no interval)"
    return f"{cell.mean:+.3f} [{cell.low:+.3f}, {cell.high:+.3f}]"


def _p(cell: Cell) -> str:
    p = _number(cell)
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _number(cell: Cell) -> float:
    return float(cell) if isinstance(cell, int | float) else _parts(cell)[0]


def _parts(cell: Cell) -> tuple[float, float, str]:
    """Mean, standard error and what it is over."""
    if isinstance(cell, Estimate):
        return cell.interval.mean, cell.interval.se, cell.over
    if isinstance(cell, Interval):
        return cell.mean, cell.se, "seeds"
    return (float(cell) if isinstance(cell, int | float) else math.nan), math.nan, "nothing"


_SHOWN: Mapping[Kind, Callable[[Cell], str]] = {
    "text": str,
    "count": lambda c: f"{_number(c):,.0f}",
    "number": lambda c: f"{_number(c):.3f}",
    "signed": lambda c: f"{_number(c):+.3f}",
    "share": lambda c: f"{_number(c):.0%}",
    "mean": _mean,
    "percent": lambda c: _mean(c, 100, 1),
    "difference": _difference,
    "p": _p,
}


def _titles(column: Column) -> tuple[str, ...]:
    title = column.title
    if column.kind in ("mean", "percent"):
        return title, f"{title} SE", f"{title} SE over"
    if column.kind == "difference":
        return title, f"{title} low", f"{title} high"
    return (title,)


def _values(cell: Cell, kind: Kind) -> tuple[str, ...]:
    if kind in ("mean", "percent"):
        mean, se, over = _parts(cell)
        return _plain(mean), _plain(se), "" if math.isnan(mean) else over
    if kind == "difference":
        ends = (cell.mean, cell.low, cell.high) if isinstance(cell, Interval) else [math.nan] * 3
        return tuple(map(_plain, ends))
    if isinstance(cell, str):
        return (_guarded(cell),)
    return (_plain(_number(cell)) if cell is not None else "",)


def _plain(value: float) -> str:
    return f"{value:.10g}" if math.isfinite(value) else ""


def _guarded(text: str) -> str:
    """A spreadsheet takes what begins like a formula for one; an apostrophe says that it is text.

    >>> _guarded("=1+1"), _guarded("plain")
    ("'=1+1", 'plain')
    """
    safe = clean(text)
    return "'" + safe if safe.lstrip(" ").startswith(_FORMULA) else safe


def in_markdown(text: str) -> str:
    r"""Text that Markdown shows as it is, in one line.

    >>> in_markdown("a|b <script>\n[x](y)")
    'a\\|b &lt;script&gt; \\[x\\]\\(y\\)'
    """
    entities = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return " ".join(_MARKDOWN.sub(r"\\\1", entities).split())
