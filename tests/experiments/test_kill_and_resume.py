"""Killed with SIGKILL at random moments and resumed each time, a run ends in the same bytes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from iterpo.config import canonical_yaml
from iterpo.experiments.plan import load_plan

pytest.importorskip("trl")
psutil = pytest.importorskip("psutil")

TIMEOUT_S = 600


def _start(plan: Path, out: Path) -> subprocess.Popen[bytes]:
    resume = ["--resume"] if (out / "plan.yaml").exists() else []
    command = [sys.executable, "-m", "iterpo", "run", str(plan), "--out", str(out), *resume]
    with out.with_suffix(".txt").open("wb") as sink:
        return subprocess.Popen(
            command, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
        )


def _finish(plan: Path, out: Path) -> None:
    process = _start(plan, out)
    code = process.wait(timeout=TIMEOUT_S)
    assert code == 0, out.with_suffix(".txt").read_text()[-3000:]


def results(run: Path) -> dict[str, bytes]:
    """All that a run says of its results; logs and timings are no results."""
    left_out = {"timings.jsonl", ".lock"}
    return {
        str(p.relative_to(run)): p.read_bytes()
        for p in sorted(run.rglob("*"))
        if p.is_file() and p.name not in left_out and p.relative_to(run).parts[0] != "logs"
    }


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.yaml"
    few = ["collect.scenarios=6", "heldout.scenarios=2", "improve.checkpoint_every=1"]
    path.write_text(canonical_yaml(load_plan("smoke", few)))
    return path


@pytest.fixture(scope="module")
def undisturbed(plan: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    _finish(plan, out)
    return out


def _kill_and_resume(
    plan: Path, out: Path, *, kills: int, seed: int, longest_s: float
) -> list[str]:
    moments = random.Random(seed)
    where = []
    for _ in range(kills):
        process = _start(plan, out)
        try:
            process.wait(timeout=moments.uniform(0.5, longest_s))
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)  # the parent alone: its child must notice
            process.wait()
        done = [p.parent.name for p in out.rglob("manifest.json")]
        where.append(f"{len(done)} sealed, exit {process.returncode}")
        if process.returncode == 0:
            break
    _finish(plan, out)
    return where


def _at_work(out: Path) -> list[list[str]]:
    """Command lines of the processes of a run, whole (`ps` cuts them at a width)."""
    every = (p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"]))
    return [command for command in every if str(out) in command]


@pytest.mark.timeout(TIMEOUT_S)
def test_pain_49_killed_in_training_it_leaves_no_child_and_ends_in_the_same_bytes(
    plan: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """From the first batch on, which is copied; the slow test kills at any moment."""
    out = tmp_path / "run"
    (out / "round-0").mkdir(parents=True)
    for part in ("plan.yaml", "versions.json", "preflight", "round-0/deploy"):
        source = undisturbed / part
        (shutil.copytree if source.is_dir() else shutil.copy)(source, out / part)
    process = _start(plan, out)
    while not list(out.glob("round-0/update/work/checkpoint-*")):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    assert len(_at_work(out)) == 2
    os.kill(process.pid, signal.SIGKILL)  # the parent alone: its child must notice
    process.wait()
    time.sleep(1)
    assert _at_work(out) == []
    assert not (out / "round-0/update/manifest.json").exists(), "killed too late"
    _finish(plan, out)
    assert results(out) == results(undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_pain_49_twenty_kills_then_the_same_bytes(plan: Path, tmp_path: Path) -> None:
    long = tmp_path / "plan.yaml"  # long enough that twenty kills fall into one run
    long.write_text(plan.read_text().replace("rounds: 1\n", "rounds: 4\n"))
    _finish(long, tmp_path / "whole")
    where = _kill_and_resume(long, tmp_path / "run", kills=20, seed=2, longest_s=6.5)
    print("\n".join(where))  # noqa: T201 - shown with -s: where the kills fell
    assert sum("exit -9" in w for w in where) == 20, "the run ended before twenty kills"
    assert results(tmp_path / "run") == results(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_pain_52_two_undisturbed_runs_are_equal(
    plan: Path, undisturbed: Path, tmp_path: Path
) -> None:
    _finish(plan, tmp_path / "run")
    assert results(tmp_path / "run") == results(undisturbed)


def test_pain_46_the_parent_never_imports_torch(plan: Path, undisturbed: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from iterpo.experiments.loop import run\n"
        "from iterpo.experiments.plan import load_plan\n"
        f"run(load_plan({str(plan)!r}, []), Path({str(undisturbed)!r}), resume=True)\n"
        "assert 'torch' not in sys.modules, 'torch was imported by the parent'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=TIMEOUT_S)
    rows = (undisturbed / "timings.jsonl").read_text().splitlines()
    assert len({json.loads(r)["pid"] for r in rows}) == len(rows) >= 4
