"""Cells with a tiny model: one batch for both methods, records, kill and resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from experiments.test_shared_batch import files
from iterpo.artifacts import seal
from iterpo.domain import Split
from iterpo.experiments import learn, phases
from iterpo.experiments.events import Event, Report, ignore
from iterpo.experiments.plan import Plan
from iterpo.experiments.records import read_records
from iterpo.experiments.results import read_run
from iterpo.experiments.shared_batch import FIRST
from iterpo.experiments.study import Cell, Study, load_study
from iterpo.experiments.study_cell import play_cell, play_yardstick
from iterpo.experiments.versions import present, read_versions
from iterpo.measure import measure
from iterpo.store import read_conversations
from iterpo.testing.tiny_model import tiny_model

FIRST_CELL, SECOND_CELL = (Cell("ultimatum", method, 1) for method in ("iterpo", "shuffled"))


def looked(folder: Path, plan: Plan, key: str, report: Report) -> None:
    """A preflight that finds nothing."""
    seal(folder / key, "preflight", {})


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.setitem(phases.PHASES, "deploy", "experiments.talked:deploy")
    monkeypatch.setitem(phases.PHASES, "preflight", "experiments.test_study_cells:looked")
    small = ["steps=2", "prompts_per_step=2", "group_size=2", "sampling.max_new_tokens=4"]
    settings = [f"plan.improve.{s}" for s in small] + ["seeds=[1]", "plan.verdict.states=0"]
    settings += ["plan.collect.sampling.max_new_tokens=4", "plan.q.epochs=1"]
    return load_study("smoke", [*settings, f"plan.policy.model={tiny_model(tmp_path / 'tiny')}"])


def untimed(told: Any) -> Any:
    if isinstance(told, dict):
        return {k: untimed(v) for k, v in told.items() if k != "wall_s"}
    return [untimed(v) for v in told] if isinstance(told, list | tuple) else told


def play(study: Study, place: Path, cell: Cell, source: Path | None) -> list[Event]:
    heard: list[Event] = []
    play_cell(study.plan_of_cell(cell), cell.folder(place), cell, source, heard.append)
    return heard


def test_both_methods_start_from_one_batch_and_a_killed_cell_ends_the_same(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (c.folder(tmp_path / "whole") for c in (FIRST_CELL, SECOND_CELL))
    play(study, tmp_path / "whole", FIRST_CELL, None)
    ran = play(study, tmp_path / "whole", SECOND_CELL, first)
    assert files(second) == files(first)
    assert f"takes the batch of {first}" in [e.text for e in ran]
    rounds = [read_run(f).rounds for f in (first, second)]
    assert rounds[0][0].deploy == rounds[1][0].deploy
    assert rounds[0][1].deploy["policy"] != rounds[1][1].deploy["policy"], "the methods differ"

    own = SECOND_CELL.folder(tmp_path / "alone")
    play(study, tmp_path / "alone", SECOND_CELL, None)
    assert files(own) == files(first), "what it would have collected itself is the same"

    with monkeypatch.context() as m:
        m.setattr(learn, "seal", _kill)
        with pytest.raises(KeyboardInterrupt):
            play(study, tmp_path / "killed", SECOND_CELL, first)
    heard = play(study, tmp_path / "killed", SECOND_CELL, first)
    assert ("skipped", FIRST) in [(e.kind, e.key) for e in heard]
    plan = study.plan_of_cell(SECOND_CELL)
    ended = [read_records(SECOND_CELL.folder(tmp_path / p), plan) for p in ("whole", "killed")]
    assert ended[0] is not None
    assert untimed(ended[0]) == untimed(ended[1])


def test_records_say_what_was_measured_and_what_it_took(study: Study, tmp_path: Path) -> None:
    play(study, tmp_path, FIRST_CELL, None)
    folder, plan = FIRST_CELL.folder(tmp_path), study.plan_of_cell(FIRST_CELL)
    told = read_records(folder, plan)
    assert told is not None
    rows = {(r["round"], r["split"]): r for r in told["records"]}
    assert set(rows) == {(i, s.value) for i in (0, 1) for s in Split}
    for (i, split), row in rows.items():
        log = read_conversations(folder / f"round-{i}/deploy/{split}")
        j = measure(log, plan.q.gamma).J_agent_turn
        assert row["J_agent_turn"] == pytest.approx(j.mean)
        parts = row["agreement"] * row["discount"] * row["deal"]
        assert parts == pytest.approx(j.mean), "all of these conversations ended in a deal"
        said = [len(t.sampled.token_ids or ()) for c in log for t in c.turns if t.sampled]
        assert (row["conversations"], row["tokens"]) == (16, sum(said))
        of_kernel = [k for k in told["kernels"] if (k["round"], k["split"]) == (i, split)]
        assert len(of_kernel) == 8
        assert sum(k["n"] * k["J_agent_turn"] for k in of_kernel) / 16 == pytest.approx(j.mean)
    assert rows[0, "train"]["steps"] is None
    made = rows[1, "train"]
    assert (made["steps"], made["candidates"]) == (2, 8)
    assert 8 <= made["candidate_tokens"] <= 32
    assert sum(r["selected"] for r in told["records"] if r["split"] == "train") == 1
    assert read_records(folder, study.plan_of_cell(SECOND_CELL)) is None, "of another plan"


def test_a_fixed_agent_has_records_too(tmp_path: Path) -> None:
    cell = Cell("ultimatum", "oracle", 1)
    plan = load_study("smoke").plan_of_cell(cell)
    play_yardstick(plan, tmp_path, cell, ignore)
    told = read_records(tmp_path, plan)
    assert told is not None
    held = next(r for r in told["records"] if r["split"] == "heldout")
    assert held["J_agent_turn"] == pytest.approx(held["J_star"])
    assert held["selected"]
    assert len(told["kernels"]) == 12 + 6
    assert read_versions(tmp_path) == (present(),)


def _kill(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
