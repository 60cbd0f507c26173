"""``.ci/run`` fails when it should, and says last what pytest said last."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from architecture.sources import ROOT

FAKE_MAKE = """#!/bin/sh
case "$1" in
  check) echo "checked"; exit ${CHECK:-0} ;;
  test)
    echo "3 items in 2 folders"; echo "browser: $ITERPO_TEST_BROWSER"
    echo "$CLOSING"; echo "make: done"; exit ${TEST:-0} ;;
esac
"""
TOOLS = ("bash", "cat", "dirname", "grep", "mktemp", "rm", "sh", "tail", "tee")


def ci(
    tmp_path: Path,
    closing: str,
    *,
    uid: int = 0,
    has: tuple[str, ...] = ("chromium",),
    **status: int,
) -> subprocess.CompletedProcess[str]:
    """Run the script where nothing else can be called, so that no test installs anything."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    path = tmp_path / "bin"
    path.mkdir()
    for name in TOOLS:
        (path / name).symlink_to(str(shutil.which(name)))
    fakes = {"make": FAKE_MAKE, "id": f"#!/bin/sh\necho {uid}\n"}
    fakes |= {name: f'#!/bin/sh\necho "{name} $*"; exit ${{APT:-0}}\n' for name in has}
    for name, text in fakes.items():
        (path / name).write_text(text)
        (path / name).chmod(0o755)
    env = {"PATH": str(path), "CLOSING": closing, **{k.upper(): str(v) for k, v in status.items()}}
    return subprocess.run(
        [str(path / "bash"), str(tmp_path / ".ci" / "run")],
        env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


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


APT = ("apt-get",)


@pytest.mark.parametrize(
    ("has", "uid", "installs"),
    [(APT, 0, True), ((*APT, "chromium-browser"), 0, False), (APT, 1000, False), ((), 0, False)],
)
def test_the_browser_is_installed_where_it_is_missing_and_can_be(
    tmp_path: Path, has: tuple[str, ...], uid: int, installs: bool
) -> None:
    done = ci(tmp_path, "3 passed in 0.10s", has=has, uid=uid)
    calls = [line for line in done.stdout.splitlines() if line.startswith("apt-get")]
    install = "apt-get -qy install --no-install-recommends chromium"
    assert calls == (["apt-get -q update", install] if installs else [])
    assert done.returncode == 0


def test_the_browsers_test_may_not_be_skipped_even_if_installing_fails(tmp_path: Path) -> None:
    done = ci(tmp_path, "3 passed in 0.10s", has=APT, apt=1)
    assert "browser: required" in done.stdout
    assert "chromium could not be installed" in done.stderr
