"""The page in a headless Chromium: no error, no missing plot, readable wide and narrow."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from iterpo.report.build import Written

pytest.importorskip("matplotlib")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine"),
]

LOOK = """() => {
  const svgs = [...document.querySelectorAll('.panel svg')];
  const wide = document.documentElement.clientWidth;
  const letters = svgs.flatMap(s => [...s.querySelectorAll('text')])
    .map(t => t.getBoundingClientRect().height);
  const out = [...document.querySelectorAll('main *')].filter(e => {
    if (e.closest('.scroll, pre, svg')) return false;
    return e.getBoundingClientRect().right > wide + 1;
  });
  return {
    title: document.title,
    plots: svgs.map(s => [s.getBoundingClientRect().width, s.getBoundingClientRect().height]),
    smallest: Math.min(...letters),
    overflow: document.documentElement.scrollWidth - wide,
    out: out.map(e => e.outerHTML.slice(0, 80)),
    body: parseFloat(getComputedStyle(document.body).fontSize),
  };
}"""


def test_it_is_readable_wide_and_narrow(written: Written) -> None:
    said: list[str] = []
    asked: list[str] = []
    with sync_api.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width in (1280, 390):
            page = browser.new_page(viewport={"width": width, "height": 900})
            page.on("console", lambda m: said.append(m.text))
            page.on("pageerror", lambda e: said.append(str(e)))
            page.on("request", lambda r: asked.append(r.url))
            page.goto(written.page.as_uri())
            found = page.evaluate(LOOK)
            assert found["title"] == "<b>run", "nothing that was said has run"
            assert len(found["plots"]) == len(written.plots) // 2, "one game: a panel a figure"
            assert all(w > 200 and h > 80 for w, h in found["plots"]), found["plots"]
            assert found["smallest"] >= 9, "the labels of plots, in pixels"
            assert found["overflow"] <= 0, f"at {width} px the page is too wide"
            assert found["out"] == []
            assert found["body"] >= 16
        browser.close()
    assert said == []
    assert [u for u in asked if not u.startswith(("file:", "data:"))] == []
