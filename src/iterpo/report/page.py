"""The page: one HTML file that loads nothing, runs nothing and shows hostile text as text."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from importlib.metadata import version
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from iterpo.report.figures import Bars, Figure
from iterpo.report.plots import inline, panel_svgs, swatch_svg
from iterpo.report.sections import Section
from iterpo.report.tables import clean

__all__ = ["Headline", "render"]

Headline = Mapping[str, Any]
"""``title``, ``summary`` and ``notes``: what stands on top."""


def render(headline: Headline, told: Sequence[Section], stem: Callable[[str], str]) -> str:
    """The whole page.

    Args:
        headline: What stands on top.
        told: Sections in order.
        stem: A name made of letters, digits and hyphens, for anchors.
    """
    files = resources.files("iterpo.report")
    page = (files / "page.html.j2").read_text(encoding="utf-8")
    # No inheritance of settings: whatever comes from outside passes the escaping of this one.
    env = Environment(
        loader=DictLoader({"page": page}),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawn = _Drawn()
    text = env.get_template("page").render(
        title=clean(str(headline["title"])),
        summary=headline["summary"],
        notes=headline["notes"],
        sections=[
            {
                "anchor": s.anchor,
                "title": s.title,
                "intro": s.intro,
                "told": [(type(item).__name__, item) for item in s.items],
            }
            for s in told
        ],
        style=Markup((files / "page.css").read_text(encoding="utf-8").rstrip()),  # noqa: S704 - ours
        version=version("iterpo"),
        clean=clean,
        anchor=lambda kind, name: f"{kind}-{stem(name)}",
        legend=drawn.legend,
        panels=drawn.panels,
    )
    return text.rstrip() + "\n"


class _Drawn:
    """Draws what the template asks for, with ids that no other drawing of the page has."""

    def __init__(self) -> None:
        self._count = 0

    def panels(self, figure: Figure) -> Iterator[Markup]:
        for panel, svg in zip(figure.panels, panel_svgs(figure), strict=True):
            yield self._placed(svg, f"{figure.title}: {panel.title}")

    def legend(self, figure: Figure) -> Iterator[tuple[Markup, str]]:
        bars = isinstance(figure.panels[0], Bars)
        for label, style in figure.legend:
            yield self._placed(swatch_svg(style, bars=bars), label), clean(label)

    def _placed(self, svg: str, title: str) -> Markup:
        self._count += 1
        drawn = inline(svg, f"d{self._count}", html.escape(clean(title)))
        return Markup(drawn)  # noqa: S704 - the drawing library escapes the labels
