"""Behaviours in a report: who coded them, on what, and what was said, in the table's order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from iterpo.report.behaviours import behaviour_table, examples, found_beside
from report.conftest import BEHAVIOUR


def row(name: str, by: str, clusters: int, n: int, **more: Any) -> dict[str, Any]:
    difference = {"mean": 0.25, "se": 0.1, "low": 0.05, "high": 0.45, "n": n, "clusters": clusters}
    rates = {"before": {"mean": 0.5}, "after": {"mean": 0.75}, "difference": difference}
    return {"behaviour": name, "by": by, **rates, **more}


JUDGE = {
    "model": "qwen",
    "url": "http://localhost:8000/v1",
    "conversations": 800,
    "coded": 200,
    "unreadable": 7,
    "cut": 3,
    "not_had": 593,
    "identical": 0,
}
TOLD: dict[str, Any] = {
    **BEHAVIOUR,
    "owner": "ult",
    "conversations": [400, 400],
    "judge": JUDGE,
    "needs_judge": ["asks_priorities"],
    "rows": [
        row("splits_difference", "rule", 100, 800),
        row("splits_difference", "judge", 25, 200, kappa={"kappa": 0.5, "conversations": 200}),
        row("calculates", "rule", 100, 800),
    ],
    "examples": {
        name: [{"by": "rule", "after": True, "kernel_id": "k", "message": 2, "text": name}]
        for name in ("calculates", "splits_difference")  # a file is sorted by name
    },
}


def test_a_row_tells_what_it_rests_on() -> None:
    table = behaviour_table(TOLD, 0)
    titles = [c.title for c in table.columns]
    cells = [dict(zip(titles, r, strict=True)) for r in table.rows]
    assert [(c["kernels"], c["conversations"]) for c in cells] == [
        (100, 800),
        (25, 200),
        (100, 800),
    ]
    assert [(c["kappa"], c["kappa over"]) for c in cells] == [
        (None, None),
        (0.5, 200),
        (None, None),
    ]


def test_the_judge_is_named_with_what_was_had() -> None:
    note = behaviour_table(TOLD, 0).note
    assert "The judge is qwen at http://localhost:8000/v1: 200 conversations coded" in note
    assert "7 unreadable, 3 of these cut off, 593 not had, of 800 conversations" in note
    assert "Needs a judge, so it has no row of one: asks_priorities." in note
    assert "same text" not in note
    alike = {**TOLD, "judge": {**JUDGE, "identical": 200}}
    assert "All 200 answers are the same text" in behaviour_table(alike, 0).note
    assert "Nobody was asked as a judge." in behaviour_table({**TOLD, "judge": None}, 0).note


def test_quotes_come_in_the_order_of_the_table() -> None:
    assert [e["behaviour"] for e in examples(TOLD)] == ["splits_difference", "calculates"]


def test_a_result_of_before_can_be_read(tmp_path: Path) -> None:
    """It told less of its judge and of its rows."""
    old = {**BEHAVIOUR, "judge": {"model": "qwen", "coded": 4, "failed": 4, "conversations": 8}}
    (tmp_path / "behavior.json").write_text(json.dumps(old))
    notes: list[str] = []
    (found,) = found_beside(tmp_path, "x", notes)
    assert notes == []
    assert "The judge is qwen: 4 conversations coded, of 8 conv" in behaviour_table(found, 0).note
