"""The run's own metrics table survives crashes and rewinds."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from iterpo.errors import StorageFullError
from iterpo.store import MetricsTable, read_metrics


def test_pain_54_rows_are_keyed_by_round_and_phase(tmp_path: Path) -> None:
    for r in (0, 1):
        table = MetricsTable(tmp_path / f"{r}.jsonl", round=r, phase="improve")
        table.record(1, {"reward": 0.5})
        table.record(2, {"reward": float("nan")})
    rows = [row for r in (0, 1) for row in read_metrics(tmp_path / f"{r}.jsonl")]
    assert [(r["round"], r["phase"], r["step"]) for r in rows] == [
        (0, "improve", 1), (0, "improve", 2), (1, "improve", 1), (1, "improve", 2),
    ]  # fmt: skip
    assert rows[1]["values"] == {"reward": None}


def test_a_resumed_phase_overwrites_what_it_repeats(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    table = MetricsTable(path, round=0, phase="improve")
    for step in (1, 2, 3):
        table.record(step, {"x": step})
    again = MetricsTable(path, round=0, phase="improve")
    again.record(2, {"x": 20})
    again.record(3, {"x": 30})
    assert [r["values"]["x"] for r in read_metrics(path)] == [1, 20, 30]


def test_a_row_cut_off_by_a_crash_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    table = MetricsTable(path, round=0, phase="improve")
    table.record(1, {"x": 1})
    with path.open("a") as stream:
        stream.write('{"phase": "imp')
    assert len(read_metrics(path)) == 1
    MetricsTable(path, round=0, phase="improve").record(2, {"x": 2})
    assert [r["step"] for r in read_metrics(path)] == [1, 2]


def test_tiny_numbers_keep_their_digits(tmp_path: Path) -> None:
    table = MetricsTable(tmp_path / "m.jsonl", round=0, phase="improve")
    table.record(1, {"learning_rate": 1.234567e-8, "loss": 1 / 3})
    values = read_metrics(tmp_path / "m.jsonl")[0]["values"]
    assert values == {"learning_rate": 1.234567e-8, "loss": 0.333333333}


def test_a_full_disk_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    table = MetricsTable(tmp_path / "m.jsonl", round=0, phase="improve")
    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StorageFullError, match=r"m\.jsonl.*--resume"):
        table.record(1, {"x": 1})
