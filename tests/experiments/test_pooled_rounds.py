"""A run that pools earlier rounds: what it records, that it resumes, and what a plan refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from experiments import killed
from iterpo.artifacts import open_sealed, seal
from iterpo.domain import Conversation, Sampling
from iterpo.errors import ConfigError
from iterpo.experiments import learn
from iterpo.experiments.events import ignore
from iterpo.experiments.lineage import policy_of_round
from iterpo.experiments.plan import Plan, load_plan
from iterpo.store import write_conversations
from iterpo.testing.tiny_model import tiny_model
from methods.conftest import sampled_talks

SAMPLING = Sampling(max_new_tokens=4)
POOLED = ("rounds=2", "q.pool_rounds=1")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    small = ["improve.steps=1", "improve.prompts_per_step=2", "improve.group_size=2"]
    small += ["improve.sampling.max_new_tokens=4", "rounds=2", "q.pool_rounds=2"]
    small += ["q.judge_fraction=0.5", "q.pool_min_ess=0", "verdict.states=4"]
    return load_plan("smoke", [f"policy.model={tiny_model(tmp_path / 'tiny')}", *small])


def log(run: Path, plan: Plan, i: int, *, worse_by: float = 0.0) -> tuple[Conversation, ...]:
    """The log of round i, sampled by the policy that the run deploys then."""
    talks = sampled_talks(policy_of_round(run, plan, i), 16, SAMPLING, i)
    lost = [replace(c.outcome, reward=(c.outcome.reward or 0) - worse_by) for c in talks]
    talks = tuple(replace(c, outcome=o) for c, o in zip(talks, lost, strict=True))
    place = run / f"round-{i}" / "deploy" / "train"
    write_conversations(place / "conversations.jsonl", talks)
    seal(place, "conversations", {})
    return talks


def facts_of(run: Path, i: int) -> dict[str, Any]:
    facts: dict[str, Any] = open_sealed(run / f"round-{i}/update")["facts"]
    return facts


def played(run: Path, plan: Plan, falls: Sequence[float]) -> None:
    for i, worse_by in enumerate(falls):
        log(run, plan, i, worse_by=worse_by)
        learn.update(run, plan, f"round-{i}/update", ignore)


def test_the_manifest_names_the_rounds_that_q_was_fitted_on(plan: Plan, tmp_path: Path) -> None:
    run = tmp_path / "run"
    played(run, plan, (0.0, 0.0))
    first, second = facts_of(run, 0), facts_of(run, 1)
    assert (first["pooled_rounds"], first["q_health"]["pooled"]) == ([], [])
    assert (second["batch_rounds"], second["pooled_rounds"]) == ([1], [0])
    (told,) = second["q_health"]["pooled"]
    assert told["rows"] == 32
    # The policy has moved, so turn 1 is weighed and the last turn is not.
    assert told["turns"][0]["ess"] < 16
    assert told["turns"][1]["ess"] == pytest.approx(16)
    off = replace(plan, q=replace(plan.q, pool_rounds=0))
    played(tmp_path / "off", off, (0.0, 0.0))
    assert "pooled_rounds" not in facts_of(tmp_path / "off", 1)
    assert facts_of(tmp_path / "off", 0)["policy"] == first["policy"]
    assert facts_of(tmp_path / "off", 1)["policy"] != second["policy"]


def test_killed_at_any_moment_a_round_that_pools_ends_in_the_same_bytes(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While ratios are computed, while Q is fitted, after it, after improving, before the seal."""
    from iterpo.methods import workspace

    moments: tuple[tuple[Any, str], ...] = (
        (workspace, "earlier_rounds"), (workspace, "fit_q"), (workspace, "improve"),
        (learn.FolderWorkspace, "verdict"), (learn, "seal"),
    )  # fmt: skip

    log(tmp_path / "a", plan, 0)
    killed.update(tmp_path / "a", plan, 0, monkeypatch)
    log(tmp_path / "a", plan, 1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    killed.update(tmp_path / "a", plan, 1, monkeypatch, moments)
    killed.update(tmp_path / "b", plan, 1, monkeypatch)
    assert killed.left(tmp_path / "a") == killed.left(tmp_path / "b")
    assert facts_of(tmp_path / "a", 1)["pooled_rounds"] == [0]


def test_after_a_roll_back_the_log_of_the_policy_that_fell_is_pooled(
    plan: Plan, tmp_path: Path
) -> None:
    plan = replace(plan, roll_back=replace(plan.roll_back, enabled=True))
    played(tmp_path, plan, (0.0, 5.0))
    facts = facts_of(tmp_path, 1)
    assert facts["roll_back"]["rolls_back"]
    assert (facts["start_round"], facts["batch_rounds"], facts["pooled_rounds"]) == (0, [0], [1])


def test_a_text_only_round_is_told_and_not_pooled(plan: Plan, tmp_path: Path) -> None:
    talks = log(tmp_path, plan, 0)
    learn.update(tmp_path, plan, "round-0/update", ignore)
    place = tmp_path / "round-0/deploy/train"
    bare = [replace(c, turns=tuple(replace(t, sampled=None) for t in c.turns)) for c in talks]
    write_conversations(place / "conversations.jsonl", bare)
    seal(place, "conversations", {})
    log(tmp_path, plan, 1)
    learn.update(tmp_path, plan, "round-1/update", ignore)
    facts = facts_of(tmp_path, 1)
    assert facts["pooled_rounds"] == []
    health = json.dumps(facts["q_health"]["concerns"])
    assert "round 0 was not pooled" in health
    assert "no token ids or no log-probabilities" in health


@pytest.mark.parametrize(
    "sampling",
    [
        "collect.sampling.top_p=0.9",
        "collect.sampling.temperature=0",
        "collect.sampling.top_k=40",
        "collect.sampling.repetition_penalty=1.1",
    ],
)
def test_a_plan_whose_logs_could_never_be_weighed_is_refused(sampling: str) -> None:
    load_plan("smoke", [*POOLED])
    load_plan("smoke", [sampling])
    with pytest.raises(ConfigError, match=r"q\.pool_rounds: given with rounds 1; .*2 or more"):
        load_plan("smoke", ["rounds=1", "q.pool_rounds=1"])
    with pytest.raises(
        ConfigError, match=r"q\.pool_rounds: given 1 with .*accepted: 0, or .*top_p"
    ):
        load_plan("smoke", [*POOLED, sampling])
    load_plan("smoke", [*POOLED, sampling, "method.name=st_grpo"])
    load_plan("smoke", [*POOLED, sampling, "q.gamma=0"])


def test_settings_of_an_option_that_is_off_leave_a_plan_what_it_was() -> None:
    off = load_plan("smoke", ["rounds=2"])
    assert load_plan("smoke", ["rounds=2", "q.pool_min_ess=0.3"]).identity() == off.identity()
    on = load_plan("smoke", [*POOLED])
    assert on.identity() != off.identity()
    assert load_plan("smoke", [*POOLED, "q.pool_min_ess=0.3"]).identity() != on.identity()
