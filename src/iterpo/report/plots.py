"""Plots: figures drawn by matplotlib, readable without colour, the same bytes for the same numbers.

Every series has a line style, a marker and a hatch besides its colour. Labels are set as they are:
a dollar sign in a name starts no formula.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from iterpo.report.figures import Bars, Dots, Figure, Lines, Panel
from iterpo.report.tables import clean

__all__ = ["inline", "panel_svgs", "swatch_svg", "whole"]


class _Style(NamedTuple):
    colour: str
    line: Any
    marker: str
    hatch: str


_STYLES = (
    _Style("#12436d", "-", "o", ""),
    _Style("#b5471b", (0, (5, 2)), "s", "///"),
    _Style("#28724a", (0, (6, 2, 1.5, 2)), "^", ".."),
    _Style("#6d3b8e", (0, (1.2, 1.4)), "D", "xx"),
    _Style("#8c6a00", (0, (3, 1.5, 1, 1.5, 1, 1.5)), "v", "\\\\"),
    _Style("#a01e55", (0, (9, 2)), "P", "++"),
    _Style("#00707f", (0, (2.5, 1.2)), "X", "o"),
    _Style("#444444", (0, (8, 2, 2, 2)), "*", "||"),
)
_FIXED: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 8.0,
    "text.parse_math": False,
    "axes.titlesize": 9.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8.0,
    "axes.edgecolor": "#55565c",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#dcdde0",
    "grid.linewidth": 0.6,
    "xtick.color": "#3b3c42",
    "ytick.color": "#3b3c42",
    "hatch.linewidth": 0.7,
    "legend.frameon": False,
    "svg.hashsalt": "iterpo",
    "svg.fonttype": "none",
    "path.simplify": True,
}
_WIDE, _HIGH = 3.0, 2.2  # inches of a panel
_ABREAST = 3
_MANY = 25  # points from which markers would hide the line
_ID = re.compile(r'(\bid="|url\(#|href="#)')


@contextmanager
def _drawing() -> Iterator[None]:
    """Our own settings, whatever a user's matplotlibrc says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_FIXED)
        yield


def panel_svgs(figure: Figure) -> list[str]:
    """Each panel as SVG of its own, so that a page can set them as wide as it is."""
    out = []
    with _drawing():
        for panel in figure.panels:
            canvas = Canvas(figsize=(_WIDE, _height(panel)), layout="constrained")
            _draw(canvas.add_subplot(), panel, figure)
            out.append(_svg(canvas))
    return out


def swatch_svg(style: int, *, bars: bool = False) -> str:
    """What stands before a name in a page's legend."""
    with _drawing():
        canvas = Canvas(figsize=(0.5, 0.16))
        axes = canvas.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set(xlim=(0, 1), ylim=(0, 1))
        if bars:
            axes.add_patch(mpl.patches.Rectangle((0.1, 0.05), 0.8, 0.9, **_fill(style)))
        else:
            axes.plot([0.05, 0.5, 0.95], [0.5] * 3, markevery=[1], **_stroke(style))
        return _svg(canvas)


def whole(figure: Figure) -> tuple[bytes, bytes]:
    """All panels under one legend, as SVG and as PNG."""
    abreast = min(_ABREAST, len(figure.panels))
    down = -(-len(figure.panels) // abreast)
    names = [clean(label) for label, _ in figure.legend]
    entry = 0.8 + 0.075 * max(map(len, names), default=0)  # inches: mark, gap and letters
    columns = max(1, min(len(names), int(_WIDE * abreast / entry)))
    high = max(map(_height, figure.panels)) * down + 0.2 * -(-len(names) // columns)
    with _drawing():
        canvas = Canvas(figsize=(_WIDE * abreast, high), layout="constrained")
        for i, panel in enumerate(figure.panels):
            _draw(canvas.add_subplot(down, abreast, i + 1), panel, figure)
        if figure.legend:
            bars = isinstance(figure.panels[0], Bars)
            marks = [
                Patch(**_fill(style)) if bars else Line2D([], [], **_stroke(style))
                for _, style in figure.legend
            ]
            canvas.legend(marks, names, loc="outside lower left", ncols=columns, handlelength=4)
        picture = io.BytesIO()
        svg = _svg(canvas).encode()
        canvas.set_layout_engine("none")  # it has done its work
        canvas.savefig(picture, format="png", dpi=150, metadata={"Software": None})
    return svg, picture.getvalue()


def inline(svg: str, name: str, title: str) -> str:
    """An SVG for the inside of a page: ids of its own, a title for those who can't see it.

    Args:
        svg: As drawn.
        name: Letters and digits; no two of a page may share it.
        title: Escaped for XML.
    """
    body = svg[svg.index("<svg") :]
    body = _ID.sub(lambda m: f"{m.group(1)}{name}-", body)
    start, end = body.index("<svg"), body.index(">")
    head = body[start:end]
    return f'{head} role="img"><title>{title}</title>{body[end + 1 :]}'


def _svg(canvas: Canvas) -> str:
    sink = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    canvas.savefig(sink, format="svg", metadata=nothing, transparent=True)
    return sink.getvalue()


def _height(panel: Panel) -> float:
    return max(1.2, 0.75 + 0.24 * len(panel.names)) if isinstance(panel, Dots) else _HIGH


def _draw(axes: Axes, panel: Panel, figure: Figure) -> None:
    axes.set_title(clean(panel.title))
    if isinstance(panel, Lines):
        _draw_lines(axes, panel, figure)
    elif isinstance(panel, Bars):
        _draw_bars(axes, panel, figure.styles)
    else:
        _draw_dots(axes, panel)


def _draw_lines(axes: Axes, panel: Lines, figure: Figure) -> None:
    for x in panel.marks:
        axes.axvline(x, color="#b9bac0", linewidth=0.6)
    if panel.level is not None:
        axes.axhline(panel.level, color="#17181c", linewidth=0.9, linestyle=(0, (1, 2)))
        if figure.level:
            place: dict[str, Any] = {
                "xy": (0.015, panel.level),
                "xycoords": ("axes fraction", "data"),
            }
            axes.annotate(figure.level, **place, ha="left", va="top", fontsize=7.5, color="#17181c")
    if panel.diagonal:
        axes.axline((0, 0), slope=1, color="#17181c", linewidth=0.9, linestyle=(0, (1, 2)))
    for line in panel.lines:
        every = None if len(line.x) < _MANY else (line.style * 7 % 20, max(1, len(line.x) // 6))
        stroke = _stroke(line.style) | ({"linewidth": 0.9} if every else {})
        axes.plot(line.x, line.y, markevery=every, **stroke)
        if line.se and not all(map(math.isnan, line.se)):
            low, high = (
                [y + sign * s for y, s in zip(line.y, line.se, strict=True)] for sign in (-1, 1)
            )
            axes.fill_between(
                line.x, low, high, color=_style(line.style).colour, alpha=0.14, linewidth=0
            )
    axes.set(xlabel=clean(panel.x_label), ylabel=clean(panel.y_label))
    if not panel.diagonal:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))


def _draw_bars(axes: Axes, panel: Bars, styles: Sequence[int]) -> None:
    width = 0.8 / len(panel.values)
    for k, (values, style) in enumerate(zip(panel.values, styles, strict=True)):
        places = [i - 0.4 + width * (k + 0.5) for i in range(len(panel.groups))]
        axes.bar(places, values, width * 0.92, **_fill(style))
    axes.axhline(0, color="#17181c", linewidth=0.8)
    names = [clean(name) for name in panel.groups]
    turned: dict[str, Any] = {"rotation": 25, "ha": "right"} if len(names) > 3 else {}
    axes.set_xticks(range(len(names)), names, **turned)
    axes.set_ylabel(clean(panel.y_label))


def _draw_dots(axes: Axes, panel: Dots) -> None:
    axes.axvline(0, color="#17181c", linewidth=0.8)
    places = range(len(panel.names))
    for y, mean, (low, high) in zip(places, panel.means, panel.ends, strict=True):
        if math.isfinite(low):
            axes.plot([low, high], [y, y], color="#12436d", linewidth=1.6, solid_capstyle="butt")
            for end in (low, high):
                axes.plot([end, end], [y - 0.16, y + 0.16], color="#12436d", linewidth=1.2)
        sure = math.isfinite(low) and (low > 0 or high < 0)
        face = "#12436d" if sure else "white"
        axes.plot([mean], [y], "o", color="#12436d", markerfacecolor=face, markersize=5)
    axes.set_yticks(places, [clean(name) for name in panel.names])
    axes.set_ylim(len(panel.names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.set_xlabel(clean(panel.x_label))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))


def _style(number: int) -> _Style:
    return _STYLES[number % len(_STYLES)]


def _stroke(number: int) -> dict[str, Any]:
    """Line style and marker; past the last style they begin again, with hollow markers."""
    s = _style(number)
    hollow = {"markerfacecolor": "white"} if number >= len(_STYLES) else {}
    size = 6.5 if s.marker == "*" else 4.5
    return {
        "color": s.colour,
        "linestyle": s.line,
        "linewidth": 1.5,
        "marker": s.marker,
        "markersize": size,
        **hollow,
    }


def _fill(number: int) -> dict[str, Any]:
    s = _style(number)
    face = s.colour if not s.hatch else "white"
    return {"facecolor": face, "edgecolor": s.colour, "hatch": s.hatch, "linewidth": 0.9}
