"""Cells side by side: who waits for whom, what fails, and what the next call still has to do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from iterpo.artifacts import seal, write_atomic
from iterpo.config import canonical_yaml
from iterpo.errors import ArtifactError, MissingDataError, ResumeError
from iterpo.experiments.events import Event
from iterpo.experiments.records import write_records
from iterpo.experiments.shared_batch import FIRST
from iterpo.experiments.study import Cell, Study
from iterpo.experiments.study_loop import StudyResult, run_study
from iterpo.experiments.study_records import read_study
from iterpo.experiments.versions import VERSIONS

pytest.importorskip("pyarrow")

STUDY = Study(
    plan={"rounds": 1},
    environments={"ultimatum": {}},
    methods={"iterpo": {}, "shuffled": {"q": {"shuffle_returns": True}}},
    seeds=(1, 2),
    yardsticks=(),
)
J = {"iterpo": 0.7, "shuffled": 0.5, "cool": 0.6}


def made_up(cell: Cell) -> dict[str, Any]:
    """Records as of a run of one round."""
    key = {"game": cell.environment, "method": cell.method, "seed": cell.seed}
    rows, kernels = [], []
    for i, j in ((0, 0.4), (1, J[cell.method])):
        for split in ("train", "heldout"):
            at = {**key, "round": i, "split": split}
            facts = dict.fromkeys(("J_message", "turns", "reward", "wall_s", "J_se"), 1.0)
            parts = {"agreement": 1.0, "discount": 1.0, "deal": j, "no_deal": None}
            cost = {"conversations": 8, "tokens": 80, "steps": None if i == 0 else 2}
            cost |= {"candidates": None, "candidate_tokens": None}
            selected = i == 1
            rows.append(
                {**at, "selected": selected, "J_agent_turn": j, "J_star": 1.0}
                | facts
                | parts
                | cost
            )
            kernels += [{**at, "kernel": k, "n": 4, "J_agent_turn": j} for k in "ab"]
    return {"records": rows, "kernels": kernels}


class Steps:
    """Stands in for a process: one step whenever it is read, and then its end."""

    def __init__(self, steps: Sequence[Callable[[], None]], code: int = 0) -> None:
        self._steps, self._code = list(steps), code
        self._pipe, writing = os.pipe()
        os.close(writing)  # always readable
        self.closed = False

    def fileno(self) -> int:
        return self._pipe

    def read(self) -> list[Event] | None:
        if not self._steps:
            return None
        self._steps.pop(0)()
        return []

    def wait(self) -> int:
        return self._code

    def explain(self, what: str, remedy: str) -> str:
        return f"{what} broke; {remedy}"

    def close(self) -> None:
        os.close(self._pipe)
        self.closed = True

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Starts:
    """Starts made-up cells and remembers how; those in ``failing`` break after their batch."""

    def __init__(self, study: Study, failing: Sequence[Cell] = (), die_at: int = 99) -> None:
        self.study, self.failing, self.die_at = study, failing, die_at
        self.started: list[tuple[Cell, Path | None]] = []
        self.children: list[Steps] = []

    def __call__(self, folder: Path, cell: Cell, source: Path | None) -> Any:
        if len(self.started) == self.die_at:
            raise KeyboardInterrupt
        self.started.append((cell, source))
        place, plan = cell.folder(folder), self.study.plan_of_cell(cell)

        def collect() -> None:
            write_atomic(place / "plan.yaml", canonical_yaml(plan))
            seal(place / FIRST, "deploy", {})

        def finish() -> None:
            if cell not in self.failing:
                write_records(place, plan, made_up(cell))

        self.children.append(Steps([collect, finish], code=int(cell in self.failing)))
        return self.children[-1]


def cells(starts: Starts) -> list[str]:
    return [f"{c.method} {c.seed}" for c, _ in starts.started]


def go(study: Study, folder: Path, starts: Starts, jobs: int = 1) -> StudyResult:
    return run_study(study, folder, jobs=jobs, start=starts)


def test_who_shares_a_batch_waits_for_it_while_others_start(tmp_path: Path) -> None:
    cool = {"collect": {"sampling": {"temperature": 0.5}}}
    study = replace(STUDY, methods={**STUDY.methods, "cool": cool}, seeds=(1,))
    starts = Starts(study)
    go(study, tmp_path / "s", starts, jobs=3)
    assert cells(starts) == ["iterpo 1", "cool 1", "shuffled 1"]
    sources = [source for _, source in starts.started]
    assert sources == [None, None, Cell("ultimatum", "iterpo", 1).folder(tmp_path / "s")]


def test_seeds_do_not_wait_for_each_other(tmp_path: Path) -> None:
    starts = Starts(STUDY)
    go(STUDY, tmp_path / "s", starts, jobs=2)
    assert cells(starts)[:2] == ["iterpo 1", "iterpo 2"]
    assert sorted(cells(starts)) == ["iterpo 1", "iterpo 2", "shuffled 1", "shuffled 2"]


def test_finished_cells_are_looked_up_and_new_ones_added(tmp_path: Path) -> None:
    go(replace(STUDY, seeds=(2,)), tmp_path / "s", Starts(STUDY))
    more = Starts(STUDY)
    go(STUDY, tmp_path / "s", more)
    assert cells(more) == ["iterpo 1", "shuffled 1"]
    none = Starts(STUDY)
    assert go(STUDY, tmp_path / "s", none).failed == {}
    assert none.started == []


def test_a_failed_cell_is_told_the_others_go_on_and_it_is_tried_again(tmp_path: Path) -> None:
    bad = Cell("ultimatum", "iterpo", 1)
    starts = Starts(STUDY, failing=[bad])
    result = go(STUDY, tmp_path / "s", starts)
    assert len(starts.started) == 4
    assert list(result.failed) == [bad]
    facts = read_study(tmp_path / "s")
    assert facts.meta["unfinished"] == ["ultimatum/iterpo/seed-1"]
    assert "run the same command again" in facts.meta["failed"]["ultimatum/iterpo/seed-1"]
    assert {(r["method"], r["seed"]) for r in facts.records} == {
        *(("iterpo", 2), ("base", 2)), *(("shuffled", s) for s in (1, 2))
    }  # fmt: skip
    again = Starts(STUDY)
    assert go(STUDY, tmp_path / "s", again).failed == {}
    assert again.started == [(bad, None)], "its batch is there"
    assert read_study(tmp_path / "s").meta["failed"] == {}


def test_killed_between_two_cells_it_goes_on_and_ends_in_the_same_bytes(tmp_path: Path) -> None:
    go(STUDY, tmp_path / "whole", Starts(STUDY), jobs=2)
    dying = Starts(STUDY, die_at=3)
    with pytest.raises(KeyboardInterrupt):
        go(STUDY, tmp_path / "s", dying, jobs=3)
    assert all(child.closed for child in dying.children), "no cell outlives the study"
    again = Starts(STUDY)
    go(STUDY, tmp_path / "s", again, jobs=2)
    for name in ("records.json", "kernels.parquet"):
        assert (tmp_path / "s" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_versions_are_those_of_the_cells_and_going_on_with_others_is_told(tmp_path: Path) -> None:
    first, folder = replace(STUDY, seeds=(1,)), tmp_path / "s"
    go(first, folder, Starts(STUDY))
    assert read_study(folder).meta["versions"]["iterpo"] == version("iterpo"), "no cell tells"
    for method, torch in (("iterpo", "1.8"), ("shuffled", "1.9")):
        place = Cell("ultimatum", method, 1).folder(folder)
        (place / VERSIONS).write_text(json.dumps([{"iterpo": version("iterpo"), "torch": torch}]))
    told: list[Event] = []
    run_study(first, folder, start=Starts(STUDY), report=told.append)
    assert read_study(folder).meta["versions"]["torch"] == "1.8, 1.9"
    assert not any("versions" in e.text for e in told), "nothing was left to do"
    run_study(STUDY, folder, start=Starts(STUDY), report=told.append)
    (line,) = [e.text for e in told if "versions" in e.text]
    assert "torch 1.8, 1.9 -> " in line
    assert "iterpo" not in line


def test_records_are_written_after_every_cell(tmp_path: Path) -> None:
    seen = []

    class Looking(Starts):
        def __call__(self, folder: Path, cell: Cell, source: Path | None) -> Any:
            told = json.loads((folder / "records.json").read_text())
            seen.append({(r["method"], r["seed"]) for r in told["records"]} - {("base", 1)})
            return super().__call__(folder, cell, source)

    go(replace(STUDY, seeds=(1,)), tmp_path / "s", Looking(STUDY))
    assert seen == [set(), {("iterpo", 1)}]


def test_rows_have_gain_and_regret_from_round_0_and_base_is_that_of_the_reference(
    tmp_path: Path,
) -> None:
    study = replace(STUDY, reference="shuffled")
    go(study, tmp_path / "s", Starts(study))
    facts = read_study(tmp_path / "s")
    row = facts.rows("ultimatum", "iterpo")[0]
    assert row["gain"] == pytest.approx(0.3)
    assert row["regret_closed"] == pytest.approx(0.5)
    base = facts.rows("ultimatum", "base")
    assert [(r["seed"], r["round"], r["gain"]) for r in base] == [(1, 0, 0), (2, 0, 0)]
    assert facts.meta["reference"] == "shuffled"
    assert facts.scores("ultimatum", "iterpo") == {s: {"a": 0.7, "b": 0.7} for s in (1, 2)}
    assert facts.scores("ultimatum", "base")[1] == {"a": 0.4, "b": 0.4}


def test_the_run_folders_may_go_but_not_half_of_the_records(tmp_path: Path) -> None:
    go(STUDY, tmp_path / "s", Starts(STUDY))
    kept = tmp_path / "kept"
    for name in ("records.json", "kernels.parquet"):
        write_atomic(kept / name, (tmp_path / "s" / name).read_bytes())
    assert read_study(kept).records == read_study(tmp_path / "s").records
    (kept / "kernels.parquet").write_bytes(b"PAR1")
    with pytest.raises(ArtifactError, match="damaged"):
        read_study(kept)
    with pytest.raises(MissingDataError, match="holds no records"):
        read_study(tmp_path)


def test_places_of_data_are_not_published(tmp_path: Path) -> None:
    options = {"environment": {"options": {"prompt_style": "compact"}}}
    study = replace(STUDY, environments={"ultimatum": options}, seeds=(1,))
    go(study, tmp_path / "s", Starts(study))
    told = read_study(tmp_path / "s").meta["study"]["environments"]
    assert told == {"ultimatum": options}
    listings = {"environment": {"options": {"data_dir": "/my/data"}}}
    study = replace(STUDY, environments={"craigslist": listings}, seeds=(1,))
    go(study, tmp_path / "t", Starts(study))
    assert "/my/data" not in (tmp_path / "t" / "records.json").read_text()


def test_a_cell_of_another_plan_is_never_gone_on_with(tmp_path: Path) -> None:
    go(STUDY, tmp_path / "s", Starts(STUDY))
    other = replace(STUDY, plan={"rounds": 2})
    starts = Starts(other)
    with pytest.raises(ResumeError, match=r"4 cells .* other settings: ultimatum/iterpo/seed-1"):
        go(other, tmp_path / "s", starts)
    assert starts.started == []
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("mine")
    with pytest.raises(ResumeError, match="not empty"):
        go(STUDY, tmp_path / "thesis", starts)


def test_two_processes_never_run_one_study(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("iterpo.experiments.ledger._LOCK_WAIT_S", 0.0)

    class Nested(Starts):
        def __call__(self, folder: Path, cell: Cell, source: Path | None) -> Any:
            with pytest.raises(ResumeError, match="another process"):
                go(STUDY, folder, Starts(STUDY))
            return super().__call__(folder, cell, source)

    go(replace(STUDY, seeds=(1,)), tmp_path / "s", Nested(STUDY))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_pain_49_killed_with_sigkill_a_study_goes_on_to_the_same_records(tmp_path: Path) -> None:
    pytest.importorskip("trl")

    def start(out: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "iterpo", "study", "smoke", "--out", str(out)]
        small = ["seeds=[1]", "yardsticks=[oracle]", "plan.collect.scenarios=6"]
        small += ["plan.heldout.scenarios=2", "plan.improve.steps=1", "plan.q.epochs=1"]
        command += ["--jobs", "2", *(part for s in small for part in ("--set", s))]
        with out.with_suffix(".txt").open("wb") as sink:
            return subprocess.Popen(command, stdout=sink, stderr=sink)

    def records(out: Path) -> Any:
        told = json.loads((out / "records.json").read_text())
        return [{k: v for k, v in r.items() if k != "wall_s"} for r in told["records"]]

    assert start(tmp_path / "whole").wait(600) == 0
    killed = start(tmp_path / "killed")
    deadline = time.monotonic() + 300
    batch = tmp_path / "killed/cells/ultimatum/iterpo/seed-1" / FIRST / "manifest.json"
    while not batch.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert start(tmp_path / "killed").wait(600) == 0
    assert records(tmp_path / "killed") == records(tmp_path / "whole")
    one, other = (
        tmp_path / "whole/cells/ultimatum" / m / "seed-1" / FIRST for m in J if m != "cool"
    )
    assert (one / "manifest.json").read_bytes() == (other / "manifest.json").read_bytes()
