"""Progress: bars in a terminal, plain lines elsewhere, always on standard error."""

from __future__ import annotations

import io
import re
import sys

import pytest

from iterpo.cli.progress import Bars, listening
from iterpo.experiments.events import Event

FACTS = {"agreement": 0.5, "conversations_per_s": 3.2, "tokens_per_s": 120.0, "failed": 0.0}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with listening() as report:
        report(Event("started", "round-0/deploy"))
        for done in range(1, 401):
            report(Event("progress", "round-0/deploy", "train", done, 400, FACTS))
        report(Event("skipped", "round-0/update"))
        report(Event("note", "round-1/deploy", text="careful"))
        report(Event("finished", "round-1/deploy"))
    told = capsys.readouterr()
    assert told.out == ""
    lines = told.err.splitlines()
    assert len(lines) == 4, "hundreds of updates a second must not flood a log file"
    assert "train 400/400  agreed 50%, 3.2 conv/s, 120 tok/s" in lines[1]
    assert "failed" not in lines[1]
    assert lines[2] == "round-0/update: already done"
    assert lines[3] == "round-1/deploy: careful"


def test_long_stages_report_every_ten_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(0, 1000, 4))
    monkeypatch.setattr("iterpo.cli.progress.time.monotonic", lambda: float(next(now)))
    with Bars() as bars:
        for done in range(1, 8):
            bars.update("improve", done, 100, {})
    assert len(capsys.readouterr().err.splitlines()) >= 2


def test_bars_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    with Bars() as bars:
        bars.update("round-0/deploy train", 3, 4, FACTS)
        bars.line("[red] is no colour here")
        bars.update("round-0/deploy train", 4, 4, FACTS | {"failed": 1.0})
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "round-0/deploy train" in text
    assert "4/4" in text
    assert "agreed 50%" in text
    assert "1 failed" in text
    assert "[red] is no colour here" in text
