"""What `show --rounds` says of updates: verdicts, lineage, and rounds that were rolled back."""

from __future__ import annotations

import json
import math
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Call, fake_phase
from iterpo.artifacts import build, seal
from iterpo.experiments.events import Report
from iterpo.experiments.loop import run as run_plan
from iterpo.experiments.plan import load_plan
from iterpo.experiments.versions import VERSIONS
from iterpo.measure.intervals import Interval

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


def test_the_versions_are_told_in_the_order_of_work(call: Call, run_folder: Path) -> None:
    def lines() -> list[str]:
        return [x for x in call("show", run_folder, "--rounds").stdout.splitlines() if "with" in x]

    assert f"numpy {version('numpy')}" in lines()[0]
    kept = [{}, {"torch": "1.9", "iterpo": "0.0.2"}]
    (run_folder / VERSIONS).write_text(json.dumps(kept))
    assert lines() == [
        "made with versions that were not kept", "then with iterpo 0.0.2, torch 1.9",
    ]  # fmt: skip
    assert json.loads(call("show", run_folder, "--rounds", "--json").stdout)["versions"] == kept
    (run_folder / VERSIONS).unlink()
    text = call("show", run_folder, "--rounds").stdout
    assert "versions: not kept by the iterpo that made this run" in text


@pytest.mark.parametrize(
    ("gain", "told"),
    [
        (
            Interval(0.1, 0.02, 0.06, 0.14, 8, 4),
            "Held-out J of pi_3 against pi_0: +0.100 (95% interval +0.060 to +0.140, paired over 4 "
            "kernels): the run made the policy better.",
        ),
        (
            Interval(-0.1, 0.02, -0.14, -0.06, 8, 4),
            "Held-out J of pi_3 against pi_0: -0.100 (95% interval -0.140 to -0.060, paired over 4 "
            "kernels): the run made the policy worse.",
        ),
        (
            Interval(0.1, 0.05, 0.0, 0.2, 8, 4),
            "Held-out J of pi_3 against pi_0: +0.100 (95% interval +0.000 to +0.200, paired over 4 "
            "kernels): the interval includes 0: this run can't tell whether the policy got better.",
        ),
        (
            Interval(0.1, math.nan, -math.inf, math.inf, 2, 1),
            "Held-out J of pi_3 against pi_0: +0.100 on a single kernel, which has no interval: "
            "this run can't tell whether the policy got better.",
        ),
        (
            None,
            "No update did better on the training kernels: pi_0 is still the policy to deploy.",
        ),
    ],
    ids=["better", "worse", "includes 0", "one kernel", "pi_0"],
)
def test_the_gain_is_told_in_words_that_its_interval_allows(
    call: Call,
    run_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    gain: Interval | None,
    told: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("iterpo.experiments.results.heldout_gain", lambda run: gain)
    lines = call("show", run_folder, "--rounds").stdout
    assert told in " ".join(lines.split())


def test_where_no_update_is_better_the_table_says_to_keep_pi_0(call: Call, tmp_path: Path) -> None:
    """From a run, not from a gain that is put in: pi_1 is worse on the training kernels."""

    def phase(folder: Path, key: str, lock_fd: int, report: Report) -> None:
        fake_phase(folder, key, lock_fd, report)
        if key == "round-1/deploy":
            manifest = folder / key / "manifest.json"
            told = json.loads(manifest.read_text())
            told["facts"]["train"]["J_agent_turn"]["mean"] = 0.1
            manifest.write_text(json.dumps(told))

    run_plan(load_plan("smoke"), tmp_path / "run", execute=phase)
    text = call("show", tmp_path / "run", "--rounds").stdout
    assert "pi_0 is still the policy to deploy" in " ".join(text.split())
    assert "pi_0 *" in text


def test_the_q_of_a_round_that_was_rolled_back_scores_none_of_its_turns(
    call: Call, run_folder: Path
) -> None:
    done = call("show", run_folder, "--round", "1")
    assert done.exit_code == 0, done.stderr
    assert "round 1 was rolled back, so its update fitted that of pi_0" in done.stderr
