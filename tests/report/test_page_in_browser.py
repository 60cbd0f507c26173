"""The page in a headless Chromium: no error, no missing plot, readable wide and narrow."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from iterpo.report.build import Written

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


def installed() -> str:
    """Path of Chromium; what is missing skips the test, and fails it where CI requires it."""
    packages = [p for p in ("jinja2", "matplotlib", "playwright") if find_spec(p) is None]
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path and not packages:
        return path
    reason = " and ".join(
        ([f"no {', '.join(packages)}: `make setup`"] if packages else [])
        + ([] if path else ["no chromium on the PATH: `apt-get install chromium`"])
    )
    if os.environ.get("ITERPO_TEST_BROWSER") == "required":  # as .ci/run says
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def chromium() -> str:
    return installed()


@pytest.mark.browser
def test_it_is_readable_wide_and_narrow(chromium: str, written: Written) -> None:
    from playwright.sync_api import sync_playwright

    said: list[str] = []
    asked: list[str] = []
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
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


@pytest.mark.parametrize(
    ("asked", "outcome"), [("", pytest.skip.Exception), ("required", pytest.fail.Exception)]
)
def test_a_missing_browser_is_skipped_by_hand_and_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch, asked: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("ITERPO_TEST_BROWSER", asked)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(outcome, match="apt-get install chromium"):
        installed()
