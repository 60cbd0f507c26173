"""Figure: panels of lines, bars or intervals as plain numbers, before anything is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Bars", "Dots", "Figure", "Line", "Lines", "Panel"]


@dataclass(frozen=True, slots=True)
class Line:
    """Points in order, with a band of one standard error where there is one."""

    style: int
    """Number of its line style, marker and colour; the same thing has the same in all panels."""
    x: tuple[float, ...]
    """Abscissae."""
    y: tuple[float, ...]
    """Ordinates."""
    se: tuple[float, ...] = ()
    """Half width of the band; empty: none. NaN where nothing shows a spread."""


@dataclass(frozen=True, slots=True)
class Lines:
    """A panel of lines."""

    title: str
    """Heading."""
    lines: tuple[Line, ...]
    """Lines."""
    x_label: str
    """What x is."""
    y_label: str
    """What y is."""
    level: float | None = None
    """A thin horizontal line, such as J*."""
    diagonal: bool = False
    """Whether y = x is drawn."""
    marks: tuple[float, ...] = ()
    """Thin vertical lines, such as the ends of rounds."""


@dataclass(frozen=True, slots=True)
class Bars:
    """A panel of groups of bars."""

    title: str
    """Heading."""
    groups: tuple[str, ...]
    """Names of the groups."""
    values: tuple[tuple[float, ...], ...]
    """By series, a value a group."""
    y_label: str
    """What they show."""


@dataclass(frozen=True, slots=True)
class Dots:
    """A panel of means with intervals, one a row, around zero."""

    title: str
    """Heading."""
    names: tuple[str, ...]
    """Rows, from above."""
    means: tuple[float, ...]
    """Means."""
    ends: tuple[tuple[float, float], ...]
    """Lower and upper ends; infinite where there is no interval."""
    x_label: str
    """What they show."""


Panel = Lines | Bars | Dots


@dataclass(frozen=True, slots=True)
class Figure:
    """Panels under one legend; files are named after it."""

    name: str
    """Stem of its files."""
    title: str
    """What it shows, in a line."""
    panels: tuple[Panel, ...]
    """One or more."""
    legend: tuple[tuple[str, int], ...] = ()
    """Label and style of each series."""
    note: str = ""
    """How to read it."""
    level: str = ""
    """What the thin horizontal line is."""

    def __post_init__(self) -> None:
        """An empty plot would look like a finding."""
        if not self.panels:
            raise ValueError(f"the figure {self.name!r} has no panel: say what is missing instead")

    @property
    def styles(self) -> Sequence[int]:
        """Styles of the legend."""
        return [style for _, style in self.legend]
