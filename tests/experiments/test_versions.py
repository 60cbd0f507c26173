"""What a run was made with: kept at its start, told when it changes, and never in the way."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path

import numpy
import pytest

from experiments.test_loop import PLAN, Phases
from iterpo.experiments import versions
from iterpo.experiments.events import Event
from iterpo.experiments.loop import run
from iterpo.experiments.results import read_run
from iterpo.experiments.versions import VERSIONS, joined, read_versions

OLD = {"python": "3.11.1", "iterpo": "0.0.1", "torch": "2.9.0"}
NEW = {"python": "3.11.1", "iterpo": "0.0.1", "torch": "2.10.0", "trl": "1.16.0"}


def start(folder: Path, monkeypatch: pytest.MonkeyPatch, die_at: str = "round-1/update") -> None:
    """A run that was killed, made with OLD."""
    monkeypatch.setattr(versions, "present", lambda _: OLD)
    dying = Phases()
    dying.die_at = die_at
    with pytest.raises(KeyboardInterrupt):
        run(PLAN, folder, execute=dying)


def resume(folder: Path) -> list[str]:
    """Go on; the notes that were told."""
    told: list[Event] = []
    run(PLAN, folder, resume=True, report=told.append, execute=Phases())
    return [e.text for e in told if e.kind == "note"]


def test_a_run_keeps_what_is_installed_when_it_starts(tmp_path: Path) -> None:
    run(PLAN, tmp_path / "r", execute=Phases())
    (kept,) = read_run(tmp_path / "r").versions
    assert kept["numpy"] == numpy.__version__
    assert kept["python"] == platform.python_version()
    assert kept["iterpo"] == version("iterpo")
    assert json.loads((tmp_path / "r" / VERSIONS).read_text()) == [kept]


def test_going_on_with_others_is_told_once_and_both_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path / "r", monkeypatch)
    monkeypatch.setattr(versions, "present", lambda _: NEW)
    (line,) = resume(tmp_path / "r")
    assert line.startswith("warning:")
    assert line.endswith(": torch 2.9.0 -> 2.10.0, trl absent -> 1.16.0")
    assert "\n" not in line
    assert list(read_versions(tmp_path / "r")) == [OLD, NEW]
    monkeypatch.setattr(versions, "present", lambda _: OLD)
    assert resume(tmp_path / "r") == [], "nothing was left to do, so nothing is made with these"
    assert list(read_versions(tmp_path / "r")) == [OLD, NEW]


def test_going_on_with_the_same_says_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path / "r", monkeypatch)
    assert resume(tmp_path / "r") == []
    assert list(read_versions(tmp_path / "r")) == [OLD]


def test_a_start_that_was_refused_leaves_no_version_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path / "r", monkeypatch, die_at="preflight")
    monkeypatch.setattr(versions, "present", lambda _: NEW)
    assert resume(tmp_path / "r") == []
    assert list(read_versions(tmp_path / "r")) == [NEW]


@pytest.mark.parametrize("damage", [None, "", "{", '["a"]', "3"])
def test_a_run_that_does_not_tell_still_reads_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str | None
) -> None:
    start(tmp_path / "r", monkeypatch)
    if damage is None:
        (tmp_path / "r" / VERSIONS).unlink()
    else:
        (tmp_path / "r" / VERSIONS).write_text(damage)
    assert read_run(tmp_path / "r").versions == ()
    assert resume(tmp_path / "r") == []
    assert list(read_versions(tmp_path / "r")) == [{}, OLD], "what stood there was of others"


def test_different_versions_are_all_told() -> None:
    told = joined([OLD, {}, NEW, OLD, {"torch": "2.9.0, 2.11.0"}])
    assert told["torch"] == "2.9.0, 2.10.0, 2.11.0"
    assert told["iterpo"] == "0.0.1"
    assert list(told) == sorted(told)
