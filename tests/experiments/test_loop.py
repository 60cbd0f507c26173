"""Algorithm 1 as look-ups: order, resume, best round, convergence, damage, and other plans."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from iterpo.agents.endpoint import EndpointConfig
from iterpo.artifacts import seal, write_atomic
from iterpo.config import canonical_yaml
from iterpo.errors import ArtifactError, ResumeError
from iterpo.experiments.events import Event, Report, decode, encode
from iterpo.experiments.ledger import LEDGER, Ledger
from iterpo.experiments.loop import run
from iterpo.experiments.plan import PartnerPlan, Plan
from iterpo.experiments.results import heldout_gain, read_run

PLAN = Plan(rounds=2, stop_when_q_converged=0.1)


class Phases:
    """Stands in for the phase processes: seals folders with made-up facts."""

    def __init__(self, j: tuple[float, ...] = (0.5, 0.9, 0.7), change: float = 1.0) -> None:
        self.j, self.change = j, change
        self.ran: list[str] = []
        self.die_at = ""

    def __call__(self, folder: Path, key: str, lock_fd: int, report: Report) -> None:
        if key == self.die_at:
            raise KeyboardInterrupt
        self.ran.append(key)
        facts: dict[str, object] = {}
        if key.endswith("deploy"):
            i = int(key[6])
            facts = {"train": {"J_agent_turn": {"mean": self.j[i]}}, "round": i}
        elif key.endswith("update") and key != "round-0/update":
            facts = {"q_change": self.change}
        write_atomic(folder / key / "x.txt", key)
        seal(folder / key, key.rpartition("/")[2], facts)


ORDER = ["preflight", "round-0/deploy", "round-0/update", "round-1/deploy", "round-1/update", "round-2/deploy"]  # fmt: skip  # noqa: E501


def test_phases_run_in_the_order_of_algorithm_1_and_the_best_round_is_kept(tmp_path: Path) -> None:
    phases = Phases()
    result = run(PLAN, tmp_path / "r", execute=phases)
    assert phases.ran == ORDER
    assert result.best_round == 1
    assert not result.converged
    assert len(result.rounds) == 3


@pytest.mark.parametrize(
    ("policies", "j", "n", "best"),
    [
        pytest.param("aab", (0.5, 0.9, 0.8), (4, 4, 4), 2, id="a lucky second round of pi_0"),
        pytest.param("aab", (0.5, 0.9, 0.6), (4, 4, 4), 0, id="pi_0 in both rounds"),
        pytest.param("aab", (0.5, 0.9, 0.75), (1, 3, 4), 0, id="weighed by conversations: 0.8"),
        pytest.param("abb", (0.5, 0.6, 0.9), (4, 4, 4), 1, id="the first round of the best"),
    ],
)
def test_a_policy_deployed_in_several_rounds_is_judged_by_all_of_them(
    tmp_path: Path, policies: str, j: tuple[float, ...], n: tuple[int, ...], best: int
) -> None:
    def phase(folder: Path, key: str, lock_fd: int, report: Report) -> None:
        facts: dict[str, object] = {}
        if key.endswith("deploy"):
            i = int(key[6])
            told = {"J_agent_turn": {"mean": j[i], "n": n[i]}}
            facts = {"policy": policies[i], "train": told, "round": i}
        write_atomic(folder / key / "x.txt", key)
        seal(folder / key, key.rpartition("/")[2], facts)

    assert run(PLAN, tmp_path / "r", execute=phase).best_round == best
    found = read_run(tmp_path / "r")
    assert found.best_round == best
    if policies[1] == "a":
        assert heldout_gain(replace(found, best_round=1)) is None, "pi_0 against pi_0 is no gain"


def test_it_stops_when_q_has_converged(tmp_path: Path) -> None:
    phases = Phases(change=0.05)
    result = run(replace(PLAN, rounds=5), tmp_path / "r", execute=phases)
    assert result.converged
    assert phases.ran == ORDER


def test_pain_49_killed_at_each_boundary_the_resumed_run_is_identical(tmp_path: Path) -> None:
    run(PLAN, tmp_path / "whole", execute=Phases())
    for n, key in enumerate(ORDER):
        folder = tmp_path / f"killed-{n}"
        dying = Phases()
        dying.die_at = key
        with pytest.raises(KeyboardInterrupt):
            run(PLAN, folder, execute=dying)
        again = Phases()
        run(PLAN, folder, resume=True, execute=again)
        assert dying.ran + again.ran == ORDER, "no phase may run twice"
        for name in (LEDGER, "result.json", "plan.yaml"):
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_run_is_never_overwritten_by_accident(tmp_path: Path) -> None:
    run(PLAN, tmp_path / "r", execute=Phases())
    with pytest.raises(ResumeError, match="--resume"):
        run(PLAN, tmp_path / "r", execute=Phases())


def test_resuming_into_a_run_of_another_plan_lists_what_differs(tmp_path: Path) -> None:
    run(PLAN, tmp_path / "r", execute=Phases())
    other = replace(PLAN, seed=7, q=replace(PLAN.q, gamma=0.5))
    with pytest.raises(ResumeError) as caught:
        run(other, tmp_path / "r", resume=True, execute=Phases())
    assert "seed: 0 -> 7" in str(caught.value)
    assert "q.gamma: 0.9 -> 0.5" in str(caught.value)
    run(replace(PLAN, name="renamed"), tmp_path / "r", resume=True, execute=Phases())


def test_resuming_goes_on_with_the_settings_that_change_no_result(tmp_path: Path) -> None:
    """A server that has moved is asked at its new address."""

    def served(url: str) -> Plan:
        config = EndpointConfig(url, "m")
        return replace(PLAN, partner=PartnerPlan("endpoint", endpoint=config))

    dying = Phases()
    dying.die_at = "round-1/deploy"
    with pytest.raises(KeyboardInterrupt):
        run(served("http://old/v1"), tmp_path / "r", execute=dying)
    again = Phases()
    run(served("http://new/v1"), tmp_path / "r", resume=True, execute=again)
    assert dying.ran + again.ran == ORDER
    assert read_run(tmp_path / "r").plan == served("http://new/v1")


def test_a_plan_refused_by_its_preflight_can_be_corrected_in_the_same_folder(
    tmp_path: Path,
) -> None:
    refused = Phases()
    refused.die_at = "preflight"
    with pytest.raises(KeyboardInterrupt):
        run(replace(PLAN, seed=7), tmp_path / "r", execute=refused)
    again = Phases()
    run(PLAN, tmp_path / "r", execute=again)
    assert again.ran == ORDER
    assert json.loads((tmp_path / "r" / LEDGER).read_text())["plan_sha256"] == PLAN.identity()
    with pytest.raises(ResumeError, match="--resume"):
        run(PLAN, tmp_path / "r", execute=Phases())
    with pytest.raises(ResumeError, match="another plan"):
        run(replace(PLAN, seed=7), tmp_path / "r", resume=True, execute=Phases())


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        pytest.param("", Plan(), id="emptied: no plan of defaults"),
        pytest.param(canonical_yaml(replace(PLAN, seed=3)), replace(PLAN, seed=3), id="edited"),
    ],
)
def test_a_stored_plan_that_was_changed_is_noticed(tmp_path: Path, text: str, plan: Plan) -> None:
    run(PLAN, tmp_path / "r", execute=Phases())
    (tmp_path / "r/plan.yaml").write_text(text)
    again = Phases()
    with pytest.raises(ArtifactError, match="not the plan that this run was started with"):
        run(plan, tmp_path / "r", resume=True, execute=again)
    assert again.ran == []


def test_a_timing_cut_off_by_a_full_disk_costs_nothing_else(tmp_path: Path) -> None:
    run(PLAN, tmp_path / "r", execute=Phases())
    row = {"phase": "preflight", "wall_s": 1.0, "peak_memory_mb": 9.0}
    (tmp_path / "r/timings.jsonl").write_text('{"phase": "pre\n' + json.dumps(row) + "\n[]\n{}\n")
    assert read_run(tmp_path / "r").timings == (row,)
    (tmp_path / "r/result.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"result\.json is corrupt .*--resume"):
        read_run(tmp_path / "r")
    run(PLAN, tmp_path / "r", resume=True, execute=Phases())
    assert read_run(tmp_path / "r").best_round == 1


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ResumeError, match="not empty"):
        run(PLAN, tmp_path, execute=Phases())


def test_a_corrupt_finished_phase_is_noticed_before_anything_is_built_on_it(tmp_path: Path) -> None:
    dying = Phases()
    dying.die_at = "round-1/deploy"
    with pytest.raises(KeyboardInterrupt):
        run(PLAN, tmp_path / "r", execute=dying)
    (tmp_path / "r/round-0/update/x.txt").write_text("round-0/updatE")
    again = Phases()
    with pytest.raises(ArtifactError, match=r"round-0/update/x\.txt"):
        run(PLAN, tmp_path / "r", resume=True, execute=again)
    assert again.ran == []


def test_two_processes_never_write_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iterpo.experiments.ledger._LOCK_WAIT_S", 0.0)
    with (
        Ledger.open(tmp_path / "r", PLAN, resume=False),
        pytest.raises(ResumeError, match="another process"),
    ):
        Ledger.open(tmp_path / "r", PLAN, resume=True)
    Ledger.open(tmp_path / "r", PLAN, resume=True).close()


def test_the_ledger_names_every_finished_phase(tmp_path: Path) -> None:
    run(PLAN, tmp_path / "r", execute=Phases())
    ledger = json.loads((tmp_path / "r" / LEDGER).read_text())
    assert [row["phase"] for row in ledger["phases"]] == ORDER
    assert ledger["plan_sha256"] == PLAN.identity()


def test_events_survive_the_pipe() -> None:
    event = Event("progress", "round-0/deploy", "train", 3, 9, {"agreement": 0.5}, "x\ny")
    assert decode(encode(event)) == event
    assert encode(event).count("\n") == 1


def test_pain_49_a_kill_in_the_very_first_write_can_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / ".plan.yaml.part").write_text("name: demo\nrou")
    result = run(PLAN, tmp_path / "r", resume=True, execute=Phases())
    assert result.best_round == 1


def test_what_to_delete_is_the_whole_phase_that_a_manifest_seals(tmp_path: Path) -> None:
    """Deleting less would leave the phase sealed, and broken for good."""
    run(PLAN, tmp_path / "r", execute=Phases())
    inner = tmp_path / "r/round-0/update/policy/adapter.txt"
    write_atomic(inner, "weights")
    seal(tmp_path / "r/round-0/update", "update", {})
    inner.unlink()
    with pytest.raises(ArtifactError, match=r"delete \S+/round-0/update and resume"):
        run(PLAN, tmp_path / "r", resume=True, execute=Phases())
    shutil.rmtree(tmp_path / "r/round-0/update")
    again = Phases()
    run(PLAN, tmp_path / "r", resume=True, execute=again)
    assert again.ran == ["round-0/update"]
