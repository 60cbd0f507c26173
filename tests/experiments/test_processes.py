"""What is said about a phase process that ended badly."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from iterpo.errors import PhaseError, StorageFullError
from iterpo.experiments import phases, processes
from iterpo.experiments.events import ignore


def _spawn(folder: Path) -> str:
    with (folder / ".lock").open("ab") as lock, pytest.raises(PhaseError) as caught:
        processes.spawn(folder, "preflight", lock.fileno(), ignore)
    return str(caught.value)


def test_an_error_raised_on_purpose_is_told_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("raunds: 4\n")
    assert "raunds: unknown key" in _spawn(tmp_path)


def test_a_run_without_the_training_stack_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plan.yaml").write_text("policy: {threads: 1}\n")
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "torch.py").write_text(
        "raise ModuleNotFoundError('No module named torch', name='torch')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "shadow"))
    told = _spawn(tmp_path)
    assert "a run needs torch, which is not installed" in told
    assert "iterpo[train]" in told
    assert "Traceback" not in told


def test_the_error_of_an_earlier_attempt_is_not_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "preflight.log").write_text("\niterpo: the disk is full\n")
    monkeypatch.setattr(processes.sys, "executable", "/bin/false")
    told = _spawn(tmp_path)
    assert "exit code 1" in told
    assert "disk" not in told


def test_a_full_disk_in_the_middle_of_a_phase_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(phases, "execute", full)
    monkeypatch.setattr(phases, "_end_with_parent", lambda: None)
    events = os.open(tmp_path / "events", os.O_WRONLY | os.O_CREAT)  # main closes it
    assert phases.main([str(tmp_path), "round-0/update", str(events)]) == 2
    assert "the disk is full" in capsys.readouterr().err


def test_a_disk_too_full_for_a_log_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message on standard error is lost there too, and an empty log explains nothing."""
    dumb = tmp_path / "python"
    dumb.write_text("#!/bin/sh\nexit 1\n")
    dumb.chmod(0o755)
    monkeypatch.setattr(processes.sys, "executable", str(dumb))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    with (tmp_path / ".lock").open("ab") as lock, pytest.raises(StorageFullError, match="--resume"):
        processes.spawn(tmp_path, "preflight", lock.fileno(), ignore)


def test_pain_46_what_a_phase_has_started_ends_with_it() -> None:
    """An engine's process left behind would keep the memory of its GPU."""
    psutil = pytest.importorskip("psutil")
    code = (
        "import multiprocessing, time\n"
        "from iterpo.experiments import phases\n"
        "engine = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))\n"
        "engine.start()\n"
        "print(engine.pid, flush=True)\n"
        "phases._end_with_parent()\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as phase:
        assert phase.stdin is not None
        assert phase.stdout is not None
        engine = psutil.Process(int(phase.stdout.readline()))
        assert engine.is_running()
        phase.stdin.close()
        assert phase.wait(10) == 3
        with contextlib.suppress(psutil.TimeoutExpired):  # no process of ours: nobody reaps it here
            engine.wait(5)
        assert not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE
