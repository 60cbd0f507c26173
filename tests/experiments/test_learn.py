"""The update phase: it leaves a policy, and says how far Q moved since the last round."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")

from experiments import killed
from iterpo.artifacts import open_sealed, seal
from iterpo.domain import Conversation, Ending, Outcome, PolicyRef, Role, Turn
from iterpo.errors import ConformanceError, TrainingError
from iterpo.experiments import learn
from iterpo.experiments.events import Event, ignore
from iterpo.experiments.lineage import policy_of_round, start_of_update
from iterpo.experiments.plan import Plan, load_plan
from iterpo.methods import RoundBatch, Workspace
from iterpo.policy_evaluation.base import QConfig
from iterpo.store import write_conversations
from iterpo.testing.tiny_model import tiny_model


def talk(i: int, round_: int = 0) -> Conversation:
    """Two agent actions; the partner closes at a reward of i / 10."""
    turns = [Turn(Role.AGENT, "hello", scripted=True)]
    for t in range(2):
        turns += [Turn(Role.PARTNER, f"offer {i} {t}"), Turn(Role.AGENT, f"ok {i * t}")]
    turns.append(Turn(Role.PARTNER, "deal"))
    outcome = Outcome(Ending.AGREED, i / 10, closing_message=len(turns) - 1)
    name = f"{round_}/k{i}/0"
    return Conversation(name, f"k{i}", "toy", tuple(turns), outcome, "be brief", round=round_)


def log(run: Path, i: int, *, worse_by: int = 0, n: int = 8) -> None:
    place = run / f"round-{i}" / "deploy" / "train"
    talks = [talk(k, i) for k in range(n)]
    if worse_by:
        lost = [replace(c.outcome, reward=(c.outcome.reward or 0) - worse_by) for c in talks]
        talks = [replace(c, outcome=o) for c, o in zip(talks, lost, strict=True)]
    write_conversations(place / "conversations.jsonl", talks)
    seal(place, "conversations", {})


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    small = ["improve.steps=1", "improve.prompts_per_step=2", "improve.group_size=2"]
    small += ["improve.sampling.max_new_tokens=4", "rounds=2", "stop_when_q_converged=0.1"]
    small += ["verdict.states=4"]
    return load_plan("smoke", [f"policy.model={tiny_model(tmp_path / 'tiny')}", *small])


def test_q_is_compared_with_that_of_the_round_before(plan: Plan, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for i in (0, 1):
        log(run, i)
        learn.update(run, plan, f"round-{i}/update", ignore)
    first, second = (open_sealed(run / f"round-{i}/update")["facts"] for i in (0, 1))
    assert "q_change" not in first
    assert 0 < second["q_change"] < math.inf
    assert second["parent"] == first["policy"]
    left = {p.name for p in (run / "round-0/update").iterdir()}
    assert left == {"manifest.json", "metrics", "policy", "q", "q_health.json"}


def _q(value: float, **config: Any) -> Any:
    class Q:
        def __init__(self) -> None:
            self.config = QConfig(**config)

        def __call__(self, states: Sequence[Any], responses: Sequence[Any]) -> list[float]:
            return [value] * len(states)

    return Q()


def test_the_change_is_relative_to_the_returns_that_q_was_fitted_to() -> None:
    """The unit and gamma of Q, not those of the plan, which a method may have overruled."""
    batch: Any = SimpleNamespace(conversations=[talk(4), talk(8)])
    turns, messages = (
        learn._q_change(_q(1.0, discount_unit=unit), _q(0.5), batch)
        for unit in ("agent_turn", "message")
    )
    assert turns is not None
    assert messages is not None
    # Closed by the partner, one message after the last action: returns are 0.9 and 0.729 of r.
    expected = [0.9 * 0.4, 0.81 * 0.9 * 0.4, 0.9 * 0.8, 0.81 * 0.9 * 0.8]
    mean = sum(expected) / 4
    spread = math.sqrt(sum((x - mean) ** 2 for x in expected) / 4)
    assert messages == pytest.approx(0.5 / spread)
    assert turns != pytest.approx(messages)


def test_a_change_without_measure_is_null_in_json() -> None:
    flat = replace(talk(4), turns=talk(4).turns[:3])
    batch: Any = SimpleNamespace(conversations=[flat])
    assert learn._q_change(_q(1.0), _q(0.5), batch) is None, "all returns are equal"
    assert json.dumps(learn._q_change(_q(1.0), _q(1.0), batch), allow_nan=False) == "0.0"


def facts_of(run: Path, i: int) -> dict[str, Any]:
    facts: dict[str, Any] = open_sealed(run / f"round-{i}/update")["facts"]
    return facts


def refusing(plan: Plan) -> Plan:
    """Every update is refused: no policy that moves at all stays below this distance."""
    return replace(plan, verdict=replace(plan.verdict, max_kl=1e-30, on_refused="discard"))


def test_by_default_a_verdict_is_told_and_changes_nothing(plan: Plan, tmp_path: Path) -> None:
    plan = replace(plan, stop_when_q_converged=None)
    silent = replace(plan, verdict=replace(plan.verdict, states=0))
    for name, p in (("told", plan), ("silent", silent)):
        log(tmp_path / name, 0)
        learn.update(tmp_path / name, p, "round-0/update", ignore)
    told, quiet = (facts_of(tmp_path / name, 0) for name in ("told", "silent"))
    assert told["verdict"] in ("unchanged", "refused")
    assert told["evidence"]["counts"]["states"] > 0
    assert "verdict" not in quiet
    assert quiet["policy"] == told["policy"]
    assert quiet["next"] == told["next"] == "policy"
    for file in ("policy/adapter_model.safetensors", "q/head.safetensors", "q_health.json"):
        one, other = (tmp_path / name / "round-0/update" / file for name in ("told", "silent"))
        assert one.read_bytes() == other.read_bytes()


def test_a_discarded_policy_is_not_deployed_and_the_next_update_has_both_logs(
    plan: Plan, tmp_path: Path
) -> None:
    plan, run = refusing(plan), tmp_path / "run"
    for i in (0, 1):
        log(run, i)
        learn.update(run, plan, f"round-{i}/update", ignore)
    first, second = facts_of(run, 0), facts_of(run, 1)
    assert (first["verdict"], first["next"]) == ("refused", "parent")
    base = policy_of_round(run, plan, 0)
    assert policy_of_round(run, plan, 1) == base == policy_of_round(run, plan, 2)
    assert second["parent"] == base.id
    assert (second["start_round"], second["batch_rounds"]) == (1, [0, 1])
    assert second["q_health"]["rows"] == 2 * first["q_health"]["rows"]
    assert "q_change" not in second, "the same policy's Q again is no convergence"
    kept = replace(plan, verdict=replace(plan.verdict, on_refused="keep"))
    log(tmp_path / "kept", 0)
    learn.update(tmp_path / "kept", kept, "round-0/update", ignore)
    assert facts_of(tmp_path / "kept", 0)["verdict"] == "refused"
    assert policy_of_round(tmp_path / "kept", kept, 1).id == first["policy"]


def test_an_update_after_a_fall_starts_from_the_best_round_with_a_smaller_step(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(plan, roll_back=replace(plan.roll_back, enabled=True))
    run, rates = tmp_path / "run", []
    real = learn.FolderWorkspace

    def spy(folder: Path, settings: Any, progress: Any, before: Any) -> Any:
        rates.append(settings.improve.learning_rate)
        return real(folder, settings, progress, before)

    monkeypatch.setattr(learn, "FolderWorkspace", spy)
    for i, worse_by in enumerate((0, 1, 2)):
        log(run, i, worse_by=worse_by)
        learn.update(run, plan, f"round-{i}/update", ignore)
    base, fallen = policy_of_round(run, plan, 0), facts_of(run, 1)
    assert "roll_back" not in facts_of(run, 0)
    assert fallen["roll_back"]["rolls_back"]
    assert fallen["roll_back"]["best_policy"] == base.id
    assert fallen["roll_back"]["difference"]["mean"] == pytest.approx(-0.9)
    assert (fallen["parent"], fallen["start_round"], fallen["batch_rounds"]) == (base.id, 0, [0])
    # The log of round 0 again, with other draws: another policy, of the first generation too.
    made = policy_of_round(run, plan, 2)
    assert (made.parent, made.round) == (base.id, 1)
    assert made.id == fallen["policy"] != facts_of(run, 0)["policy"]
    lr = plan.improve.learning_rate
    assert rates == pytest.approx([lr, lr / 2, lr / 4])
    assert start_of_update(run, plan, 2) == base
    assert "q_change" not in fallen


def test_killed_at_any_moment_a_roll_back_ends_in_the_same_bytes(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After fitting Q, after improving, and after the verdict, before the seal."""
    plan = replace(
        plan, roll_back=replace(plan.roll_back, enabled=True),
        q=replace(plan.q, judge_fraction=0.5),
    )  # fmt: skip
    workspace = learn.FolderWorkspace
    moments = ((workspace, "improve"), (workspace, "verdict"), (learn, "seal"))

    log(tmp_path / "a", 0, n=16)
    killed.update(tmp_path / "a", plan, 0, monkeypatch)
    log(tmp_path / "a", 1, worse_by=1, n=16)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    killed.update(tmp_path / "a", refusing(plan), 1, monkeypatch, moments)
    killed.update(tmp_path / "b", refusing(plan), 1, monkeypatch)
    left = killed.left(tmp_path / "a")
    assert left == killed.left(tmp_path / "b")
    told = facts_of(tmp_path / "a", 1)
    assert (told["roll_back"]["rolls_back"], told["verdict"], told["next"]) == (
        True, "refused", "parent",
    )  # fmt: skip
    assert any("/judge/" in name for name in left)


class Failing:
    """Trains, and fails until it is mended."""

    broken = True

    def update(self, policy: PolicyRef, batch: RoundBatch, workspace: Workspace) -> PolicyRef:
        q = workspace.fit_q(policy, batch, gamma=0.9 if self.broken else 0.5)
        new = workspace.improve(policy, batch, reward=q)
        if self.broken:
            raise KeyError("a mistake")
        return new


def test_an_update_that_other_code_began_is_begun_again(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its finished parts would be found again, and the old policy would be deployed."""
    told: list[Event] = []

    def go(run: Path, method: Failing, code: str) -> str:
        if not run.exists():
            log(run, 0)
        monkeypatch.setattr(learn, "make", lambda *_: method)
        monkeypatch.setattr(learn, "PLUGINS", SimpleNamespace(code=lambda _: ("theirs", code)))
        learn.update(run, plan, "round-0/update", told.append)
        return str(open_sealed(run / "round-0/update")["facts"]["policy"])

    mended = Failing()
    mended.broken = False
    for _ in range(2):
        with pytest.raises(KeyError):
            go(tmp_path / "run", Failing(), "1 (code a)")
    assert (tmp_path / "run/round-0/update/policy/manifest.json").is_file()
    assert not [e for e in told if e.kind == "note"], "the same code goes on"
    found = go(tmp_path / "run", mended, "1 (code b)")
    assert [e.text for e in told if e.kind == "note"] == [
        "begun again: the code of its method has changed since"
    ]
    assert found == go(tmp_path / "whole", mended, "1 (code b)")


@pytest.mark.parametrize("wrong", [None, ("a policy",), "later"])
def test_what_a_method_gives_back_must_be_a_stored_policy(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Any
) -> None:
    class Wrong:
        def update(self, policy: PolicyRef, batch: RoundBatch, workspace: Workspace) -> Any:
            return replace(policy, round=3, adapter_sha256="0" * 64) if wrong == "later" else wrong

    log(tmp_path / "run", 0)
    monkeypatch.setattr(learn, "make", lambda *_: Wrong())
    given = "r3-" if wrong == "later" else repr(wrong)
    with pytest.raises(ConformanceError) as caught:
        learn.update(tmp_path / "run", plan, "round-0/update", ignore)
    assert str(caught.value).startswith(f"update of method 'iterpo' returned {given}")
    assert not (tmp_path / "run/round-0/update/manifest.json").exists()


def test_an_update_trains_once(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second training would be found finished: a method of two would be told as the first."""

    class Twice:
        def update(self, policy: PolicyRef, batch: RoundBatch, workspace: Workspace) -> PolicyRef:
            new = workspace.improve(policy, batch, reward=lambda s, _: [0.0] * len(s))
            return workspace.improve(new, batch, reward=lambda s, _: [1.0] * len(s))

    log(tmp_path / "run", 0)
    monkeypatch.setattr(learn, "make", lambda *_: Twice())
    for _ in range(2):  # also where the first is found again
        with pytest.raises(TrainingError, match="an update trains once"):
            learn.update(tmp_path / "run", plan, "round-0/update", ignore)
