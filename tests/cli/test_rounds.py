"""What `show --rounds` says of updates: verdicts, lineage, and rounds that were rolled back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Call, fake_phase
from iterpo.artifacts import build, seal
from iterpo.experiments.events import Report
from iterpo.experiments.loop import run as run_plan
from iterpo.experiments.plan import load_plan

GAIN = {"mean": 0.05, "se": 0.01, "low": 0.02, "high": 0.08, "n": 9, "clusters": 5}
EVIDENCE = {"judge_gain": GAIN, "off_policy": {**GAIN, "ess": 61.5}, "kl": 0.25, "unseen_new": 0.07}
UPDATES: tuple[dict[str, Any], ...] = (
    {
        "policy": "r1-aaaa",
        "parent": "r0-base",
        "start_round": 0,
        "batch_rounds": [0],
        "next": "policy",
        "verdict": "improved",
        "why": "better: judge",
        "evidence": EVIDENCE,
    },
    {
        "policy": "r1-bbbb",
        "parent": "r0-base",
        "start_round": 0,
        "batch_rounds": [0],
        "next": "parent",
        "verdict": "refused",
        "why": "worse: judge",
        "evidence": EVIDENCE,
        "roll_back": {"best_policy": "r0-base", "difference": {**GAIN, "mean": -0.2}},
    },
    {
        "policy": "r1-cccc",
        "parent": "r0-base",
        "start_round": 2,
        "batch_rounds": [0, 2],
        "next": "policy",
    },
)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    def phase(folder: Path, key: str, lock_fd: int, report: Report) -> None:
        if not key.endswith("update"):
            fake_phase(folder, key, lock_fd, report)
            return
        facts = {"config": {"gamma": 0.5}}
        with build(folder / key / "q", "q", facts):
            pass
        seal(folder / key, "update", UPDATES[int(key[6])])

    run_plan(load_plan("smoke", ["rounds=3"]), tmp_path / "run", execute=phase)
    return tmp_path / "run"


def test_verdicts_and_lineage_are_told(
    call: Call, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = call("show", run_folder, "--rounds").stdout
    for part in (
        "improved", "+0.050 [0.020, 0.080]", "61.500", "7%", "round 0: improved: better: judge",
        "round 1: refused: worse: judge",
        "round 1: pi_1 fell by 0.200, so the update started again from pi_0 (r0-base); "
        "r1-bbbb was discarded: round 2 deploys r0-base",
        "round 2: r0-base was deployed in rounds 0, 2: all their logs were used",
    ):  # fmt: skip
        assert part in text, text
    row = next(line for line in text.splitlines() if "r1-cccc" in line)
    assert "r0-base" in row
    assert row.count("-") >= 5, "a dash for what is not known"


def test_the_q_of_a_round_that_was_rolled_back_scores_none_of_its_turns(
    call: Call, run_folder: Path
) -> None:
    done = call("show", run_folder, "--round", "1")
    assert done.exit_code == 0, done.stderr
    assert "round 1 was rolled back, so its update fitted that of pi_0" in done.stderr
