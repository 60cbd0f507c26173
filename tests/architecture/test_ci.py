"""``.ci/run`` fails when it should, and says last what pytest said last."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from architecture.sources import ROOT

FAKE_MAKE = """#!/bin/sh
case "$1" in
  check) echo "checked"; exit ${CHECK:-0} ;;
  test) echo "3 items in 2 folders"; echo "$CLOSING"; echo "make: done"; exit ${TEST:-0} ;;
esac
"""


def ci(tmp_path: Path, closing: str, **status: int) -> subprocess.CompletedProcess[str]:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    make = tmp_path / "bin" / "make"
    make.parent.mkdir()
    make.write_text(FAKE_MAKE)
    make.chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{make.parent}{os.pathsep}{os.environ['PATH']}",
        "CLOSING": closing,
        **{k.upper(): str(v) for k, v in status.items()},
    }
    return subprocess.run(
        [str(tmp_path / ".ci" / "run")], env=env, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("closing", "status", "fails"),
    [
        ("3 passed, 1 skipped in 12.34s", {}, False),
        ("378 passed in 75.01s (0:01:15)", {}, False),
        ("===== 1 failed, 2 passed in 0.50s =====", {"test": 2}, True),
        ("4 deselected, 5 errors in 18.95s", {"test": 2}, True),
        ("3 passed in 0.10s", {"check": 1}, True),
    ],
)
def test_the_result_is_pytests(
    tmp_path: Path, closing: str, status: dict[str, int], fails: bool
) -> None:
    done = ci(tmp_path, closing, **status)
    assert (done.returncode != 0) is fails
    assert done.stdout.rstrip().splitlines()[-1] == closing
    assert "checked" in done.stdout


def test_a_run_without_tests_is_no_success(tmp_path: Path) -> None:
    done = ci(tmp_path, "nothing", test=5)
    assert done.returncode == 5
    assert done.stdout.rstrip().endswith("no test ran")
