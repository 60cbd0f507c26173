"""Plots: told apart without colour, the same bytes again, and labels that are only text."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")

from iterpo.report.figures import Bars, Dots, Figure, Line, Lines
from iterpo.report.plots import _STYLES, inline, panel_svgs, swatch_svg, whole

NASTY = "<b>$x_{$ & \x00 \u202e"
LINES = Lines(
    NASTY,
    (Line(0, (0.0, 1.0), (0.2, 0.4), (0.1, 0.1)), Line(9, (0.0, 1.0), (0.3, 0.1))),
    "round",
    "J",
    level=0.5,
)
FIGURE = Figure("f", "t", (LINES,), ((NASTY, 0), ("other", 9)), level="J*")


def texts(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return ["".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text")]


def test_series_differ_without_colour() -> None:
    assert len({str(s.line) for s in _STYLES}) == len(_STYLES)
    assert len({s.marker for s in _STYLES}) == len(_STYLES)
    assert len({s.hatch for s in _STYLES}) == len(_STYLES)
    assert swatch_svg(0) != swatch_svg(len(_STYLES)), "those past the last have hollow markers"


def test_the_same_numbers_give_the_same_bytes_whatever_the_users_settings() -> None:
    import matplotlib as mpl

    first = whole(FIGURE)
    with mpl.rc_context({"font.size": 20, "lines.linewidth": 9, "svg.fonttype": "path"}):
        assert whole(FIGURE) == first
    assert b"<dc:date>" not in first[0]
    assert b"atplotlib" not in first[1][:200]


def test_labels_are_text() -> None:
    (svg,) = panel_svgs(FIGURE)
    assert any(t.startswith("<b>$x_{$ & ") for t in texts(svg)), texts(svg)
    assert "\x00" not in svg
    assert "\u202e" not in svg
    assert any("J*" in t for t in texts(svg))


def test_every_kind_of_panel_is_drawn() -> None:
    bars = Bars("b", ("m1", "m2"), ((0.1, -0.2), (0.3, 0.1), (0.0, float("nan"))), "part")
    dots = Dots("d", ("m1",), (0.1,), ((float("-inf"), float("inf")),), "difference")
    (svg,) = panel_svgs(Figure("f", "t", (bars,), (("x", 0), ("y", 1), ("z", 2))))
    assert {"m1", "m2", "part"} <= set(texts(svg))
    assert {"m1", "difference"} <= set(texts(panel_svgs(Figure("f", "t", (dots,)))[0]))


def test_drawings_of_a_page_share_no_id() -> None:
    (svg,) = panel_svgs(FIGURE)
    roots = [ElementTree.fromstring(inline(svg, name, "a &lt; b")) for name in ("d1", "d2")]
    ids = [[e.get("id") for e in root.iter() if e.get("id")] for root in roots]
    assert ids[0]
    assert not set(ids[0]) & set(ids[1])
    used = [v for e in roots[0].iter() for k, v in e.items() if k.endswith("href")]
    assert used
    assert {u.removeprefix("#") for u in used} <= set(ids[0])


def test_an_empty_figure_is_refused() -> None:
    with pytest.raises(ValueError, match="say what is missing"):
        Figure("f", "t", ())
