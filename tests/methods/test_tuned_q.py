"""A tuned critic in the loop: stored once, found again, judged by its own features."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from iterpo.artifacts import open_sealed
from iterpo.domain import PolicyRef, Sampling, decisions
from iterpo.experiments.events import Report, ignore
from iterpo.experiments.loop import run
from iterpo.experiments.phases import execute
from iterpo.experiments.plan import load_plan
from iterpo.experiments.results import read_run
from iterpo.methods import RoundBatch
from iterpo.methods.asked import ask, listen, speak
from iterpo.methods.verdict import VerdictConfig
from iterpo.methods.workspace import FolderWorkspace, Settings
from iterpo.models.backbone import load
from iterpo.policy_evaluation.base import QConfig, TuneConfig
from iterpo.policy_evaluation.continuation import first_own_return
from iterpo.policy_evaluation.split import set_aside
from iterpo.store import read_conversations
from iterpo.testing.interruptions import Stopped
from methods.conftest import IMPROVE, sampled_talks

TUNE = TuneConfig(r=4, alpha=8, learning_rate=5e-3, epochs=2)
Q = QConfig(epochs=2, learning_rate=1e-2, hidden=16, heads=2, judge_fraction=0.5, tune=TUNE)
ONE_STEP = replace(IMPROVE, sampling=Sampling(max_new_tokens=5), steps=1)
ASKED = VerdictConfig(states=6, candidates=2)


@pytest.fixture(scope="module")
def batch(policy: PolicyRef) -> RoundBatch:
    return RoundBatch(0, sampled_talks(policy, 16, Sampling(max_new_tokens=5)), policy)


def test_the_verdict_asks_each_q_by_its_own_features(
    policy: PolicyRef, batch: RoundBatch, tmp_path: Path
) -> None:
    """q_gain and judge_gain as plain calls of both Qs give them, state by state."""
    workspace = FolderWorkspace(tmp_path, Settings(Q, ONE_STEP, verdict=ASKED))
    q = workspace.fit_q(policy, batch)
    new = workspace.improve(policy, batch, reward=q)
    verdict = workspace.verdict(policy, new, batch)
    assert verdict is not None
    told = verdict.evidence
    again = FolderWorkspace(tmp_path, Settings(Q, ONE_STEP, verdict=ASKED))
    stored = [again.stored_q(policy, tmp_path / name) for name in ("q", "judge")]
    assert stored[0].id == q.id
    assert stored[0].backbone.critic
    assert stored[1].backbone.critic is None, "the judge's error is known in frozen features only"
    own, aside = set_aside(batch.conversations, Q)
    asked = ask(own, aside, ASKED, Q, ONE_STEP.sampling)
    spoken, before = listen(load(new), asked).spoken, speak(load(policy), asked)
    frozen = replace(stored[0], backbone=load(policy))
    means = []
    for reward in (*stored, frozen):
        after, past = reward(spoken.states, spoken.said), reward(before.states, before.said)
        gaps = [a - b for a, b in zip(after, past, strict=True) if a is not None and b is not None]
        means.append(math.fsum(gaps) / len(gaps))
    assert told.q_gain is not None
    assert told.judge_gain is not None
    assert told.q_gain.mean == pytest.approx(means[0], abs=1e-5)
    assert told.judge_gain.mean == pytest.approx(means[1], abs=1e-5)
    assert abs(means[2] - means[0]) > 1e-4, "through the frozen features it would be another"
    assert told.unseen_new is not None, "coverage is told as well"


def test_the_policy_that_is_improved_carries_nothing_of_the_critic(
    policy: PolicyRef, batch: RoundBatch, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    workspace = FolderWorkspace(tmp_path, Settings(Q, ONE_STEP))
    new = workspace.improve(policy, batch, reward=workspace.fit_q(policy, batch))
    assert new.adapter is not None
    stored = load_file(Path(new.adapter) / "adapter_model.safetensors")
    assert stored
    assert not any("critic" in name for name in stored)
    names = [name for name, _ in workspace.backbone(policy).model.named_parameters()]
    assert any(".default." in name for name in names), "what was trained"
    assert not any(".critic." in name for name in names)


def test_a_tiny_run_of_the_loop_with_optimism(tmp_path: Path) -> None:
    """Up to the third batch: explored by the tuned Q of the second, its adapter on an adapter."""
    small = ["collect.scenarios=6", "heldout.scenarios=3", "rounds=3"]
    quick = ["improve.steps=1", "improve.prompts_per_step=2", "improve.group_size=2"]
    tuned = ["q.tune={r: 4, alpha: 8, epochs: 1}", "q.heads=2", "q.off_policy=drop"]
    optimism = ["collect.optimism={share: 0.5, candidates: 3, within: 1}", "verdict.states=0"]
    plan = load_plan("smoke", [*small, *quick, *tuned, *optimism])

    def play(folder: Path, key: str, _: int, report: Report) -> None:
        if key == "round-2/update":
            raise Stopped
        execute(folder, key, report)

    with pytest.raises(Stopped):
        run(plan, tmp_path / "run", execute=play)
    facts = read_run(tmp_path / "run")
    assert [r.deploy["optimism"]["q_round"] for r in facts.rounds] == [None, 0, 1]
    assert facts.rounds[2].deploy["optimism"]["said"] > 0
    for i in range(2):
        place = tmp_path / f"run/round-{i}/update/q"
        assert (place / "critic.safetensors").is_file()
        assert open_sealed(place)["facts"]["config"]["tune"]["r"] == 4
        health = facts.rounds[i].update["q_health"]  # type: ignore[index]
        log = read_conversations(tmp_path / f"run/round-{i}/deploy/train")
        rows = [decisions(c, 0.9)[first_own_return(c, 0.9) - 1 :] for c in log]
        assert health["rows"] == sum(map(len, rows))
    place = tmp_path / "run/round-2/deploy"
    stored = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    execute(tmp_path / "run", "round-2/deploy", ignore)  # found as it is
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == stored
