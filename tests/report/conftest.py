"""One report that several tests look at, since drawing takes seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Call, call
from report.invented_run import PAYLOADS, finished_run

__all__ = ["Call", "call"]

BEHAVIOUR = {
    "owner": "x",
    "environment": "ultimatum",
    "split": "heldout",
    "rounds": [1],
    "conversations": [4, 4],
    "rows": [
        {
            "behaviour": "calculations",
            "by": "rule",
            "before": {"mean": 0.5},
            "after": {"mean": 0.25},
            "difference": {"mean": -0.25, "se": 0.1, "low": -0.45, "high": -0.05, "n": 8},
            "kappa": None,
        }
    ],
    "examples": {
        "calculations": [
            {"by": "rule", "after": True, "kernel_id": "k", "message": 2, "text": PAYLOADS[1]}
        ]
    },
}


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = finished_run(tmp_path_factory.mktemp("runs") / "<b>run")
    (folder / "behavior").mkdir()
    (folder / "behavior" / "behavior.json").write_text(json.dumps(BEHAVIOUR))
    return folder


@pytest.fixture(scope="session")
def written(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    from iterpo.report.build import write_report

    return write_report([run], tmp_path_factory.mktemp("report"))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots take time and matter to other tests."""
    monkeypatch.setattr("iterpo.report.build.whole", lambda _: (b"<svg/>", b"png"))
    monkeypatch.setattr(
        "iterpo.report.page.panel_svgs", lambda f: ["<svg viewBox=''></svg>"] * len(f.panels)
    )
