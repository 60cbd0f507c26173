"""ArCHer and ArCHer-LC: the paper's settings, the buffer over rounds, and who imitates what."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from iterpo.artifacts import is_sealed, open_sealed
from iterpo.domain import Conversation, Ending, Outcome, PolicyRef, Role, Turn, decisions
from iterpo.errors import BatchError, ConfigError, ModelError
from iterpo.experiments.events import ignore
from iterpo.experiments.plan import load_plan
from iterpo.experiments.preflight import preflight
from iterpo.methods import RoundBatch, make
from iterpo.methods.likelihood import log_probs
from iterpo.methods.workspace import FolderWorkspace, Settings
from iterpo.models.backbone import load
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_improvement import awr
from iterpo.policy_improvement.logged import Example
from iterpo.store import METRICS, read_metrics
from iterpo.testing.tiny_encoder import tiny_encoder
from methods.conftest import IMPROVE, talk

QUICK = {"critic_learning_rate": 1e-2, "critic_batch_size": 8, "learning_rate": 1e-3}
SETTINGS = Settings(QConfig(judge_fraction=0.0), IMPROVE)


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_encoder(tmp_path_factory.mktemp("roberta")))


def options_of(name: str, encoder: str) -> dict[str, Any]:
    """ArCHer with the policy itself is the third kind that users have."""
    extra = {"archer": {"encoder": encoder}, "archer_policy": {"encoder": "policy"}}
    return {**QUICK, **extra.get(name, {"hidden": 8})}


def updated(
    folder: Path,
    batch: RoundBatch,
    policy: PolicyRef,
    options: Mapping[str, Any],
    name: str = "archer_lc",
    before: Path | None = None,
) -> PolicyRef:
    workspace = FolderWorkspace(folder, SETTINGS, before=before)
    return make(name, options).update(policy, batch, workspace)


@pytest.fixture
def imitated(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Example]]:
    """What the actor is given, instead of its training."""
    seen: list[Sequence[Example]] = []

    def learn(_: object, policy: PolicyRef, batch: RoundBatch, learner: Any) -> PolicyRef:
        learner(None)
        return replace(policy, round=batch.round + 1)

    monkeypatch.setattr(awr, "train", lambda _, examples, __: seen.append(examples))
    monkeypatch.setattr(FolderWorkspace, "learn", learn)
    return seen


def test_the_defaults_are_those_of_the_paper() -> None:
    """Tables 4 and 5."""
    archer, lc = make("archer").options, make("archer_lc").options  # type: ignore[attr-defined]
    assert archer.encoder == "FacebookAI/roberta-base"
    both = {
        "critic_epochs": 3, "critic_accumulation": 4, "expectile": 0.9, "target_ema": 0.05,
        "capacity": 10_000, "learning_rate": 1e-5, "epochs": 1, "steps": None, "batch_size": 1,
        "gradient_accumulation": 16, "weight_clip": None, "normalise": False,
    }  # fmt: skip
    for name, value in both.items():
        assert (getattr(archer, name), getattr(lc, name)) == (value, value), name
    own = ("critic_learning_rate", "critic_batch_size", "beta")
    assert [getattr(archer, n) for n in own] == [1e-5, 32, 10.0]
    assert [getattr(lc, n) for n in own] == [1e-4, 8, 3.0]
    assert (lc.hidden, lc.dropout, lc.pooling, lc.standardise) == (256, 0.1, "final", False)


def test_bad_options_are_told_with_the_plan() -> None:
    with pytest.raises(ConfigError, match=r"(?s)options\.expectile: given 1.*options\.beta"):
        load_plan("smoke", ["method={name: archer, options: {expectile: 1.0, beta: -1.0}}"])
    with pytest.raises(ConfigError, match=r"options\.hidden: given 0"):
        load_plan("smoke", ["method={name: archer_lc, options: {hidden: 0}}"])


def test_what_needs_a_q_is_refused_with_methods_that_fit_none() -> None:
    optimism = "collect.optimism={share: 0.5, candidates: 2}"
    asked = ["rounds=2", "q.off_policy=drop", optimism, "stop_when_q_converged=0.1"]
    load_plan("smoke", asked)
    for name in ("archer", "archer_lc", "mt_sft"):
        with pytest.raises(ConfigError, match=rf"(?s)stop_when.*{name}, which.*optimism: given"):
            load_plan("smoke", [*asked, f"method.name={name}"])


def test_an_encoder_that_can_not_be_had_is_told_before_the_run(
    encoder: str, tmp_path: Path
) -> None:
    for name in (encoder, "policy"):
        make("archer", {"encoder": name}).preflight()  # type: ignore[attr-defined]
    plan = load_plan("smoke", [f"method={{name: archer, options: {{encoder: {tmp_path}}}}}"])
    with pytest.raises(ModelError, match=r"method\.options\.encoder: .*config\.json.* policy"):
        preflight(tmp_path / "run", plan, "preflight", ignore)


@pytest.mark.parametrize("name", ["archer", "archer_policy", "archer_lc"])
def test_an_update_is_the_same_every_time_and_leaves_what_it_found(
    name: str, encoder: str, policy: PolicyRef, batch: RoundBatch, tmp_path: Path
) -> None:
    options, method = options_of(name, encoder), name.removesuffix("_policy")
    new = [updated(tmp_path / k, batch, policy, options, method) for k in "ab"]
    assert new[0].id == new[1].id != policy.id
    files = ("critic.safetensors", "advantages.json", METRICS, "manifest.json")
    for file in files:
        assert (tmp_path / "a/critic" / file).read_bytes() == (
            tmp_path / "b/critic" / file
        ).read_bytes()
    facts = open_sealed(tmp_path / "a/critic", "critic")["facts"]
    assert (facts["transitions"], facts["explored"], facts["warm_start"]) == (16, 0, False)
    told = json.loads((tmp_path / "a/critic/advantages.json").read_text())
    assert [(c, t) for c, t, _ in told] == [(f"0/k{i}/0", t) for i in range(8) for t in (1, 2)]
    assert all(torch.isfinite(torch.tensor(a)) for *_, a in told)
    rows = read_metrics(tmp_path / "a/critic" / METRICS)
    assert [(r["phase"], r["step"]) for r in rows] == [("critic", 1), ("critic", 2), ("critic", 3)]


def test_a_finished_critic_is_not_fitted_again(
    policy: PolicyRef,
    batch: RoundBatch,
    tmp_path: Path,
    imitated: list[Sequence[Example]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after a kill that fell into the actor's training: the same examples, number for number."""
    from iterpo.policy_evaluation import iql

    options = {**QUICK, "hidden": 8}
    updated(tmp_path, batch, policy, options)
    monkeypatch.setattr(iql, "fit", None)
    updated(tmp_path, batch, policy, options)
    assert imitated[0] == imitated[1]


def test_the_actor_imitates_by_advantage(
    policy: PolicyRef, batch: RoundBatch, tmp_path: Path, imitated: list[Sequence[Example]]
) -> None:
    updated(tmp_path, batch, policy, {**QUICK, "hidden": 8, "beta": 3.0})
    told = json.loads((tmp_path / "critic/advantages.json").read_text())
    weights = {(c, t): torch.tensor(3.0 * a).exp().item() for c, t, a in told}
    (examples,) = imitated
    assert len(examples) == len(weights) == 16
    for example in examples:
        name = (example.state.conversation_id, example.state.t)
        assert example.weight == pytest.approx(weights[name], rel=1e-5)
    assert len({round(e.weight, 6) for e in examples}) > 8, "turns weigh differently"


def test_the_next_round_starts_from_the_stored_critic_and_draws_from_both_logs(
    policy: PolicyRef, batch: RoundBatch, tmp_path: Path, imitated: list[Sequence[Example]]
) -> None:
    options = {**QUICK, "hidden": 8}
    first = updated(tmp_path / "0", batch, policy, options)
    log = tuple(replace(talk(i), id=f"1/k{i}/0", round=1) for i in range(8))
    later = RoundBatch(1, log, policy, earlier=(batch.conversations,))
    still = {**options, "critic_learning_rate": 1e-12, "critic_epochs": 1, "target_ema": 1e-9}
    updated(tmp_path / "1", later, first, still, before=tmp_path / "0")
    assert open_sealed(tmp_path / "1/critic")["facts"]["warm_start"] is True
    old, new = (load_file(tmp_path / f"{i}/critic/critic.safetensors") for i in range(2))
    for name, value in old.items():
        torch.testing.assert_close(new[name], value, atol=1e-9, rtol=0)
    updated(tmp_path / "2", later, first, still)
    cold = load_file(tmp_path / "2/critic/critic.safetensors")
    assert not torch.allclose(cold["critic.q.outer"], old["critic.q.outer"], atol=1e-3)
    drawn = [e.state.conversation_id for e in imitated[1]]
    assert len(drawn) == 16, "as many as the round logged"
    assert {name[0] for name in drawn} == {"0", "1"}


def explored(conversation: Conversation, *messages: int) -> Conversation:
    turns = tuple(replace(t, off_policy=i in messages) for i, t in enumerate(conversation.turns))
    return replace(conversation, turns=turns)


def test_explored_turns_teach_the_critic_and_are_not_imitated(
    policy: PolicyRef, batch: RoundBatch, tmp_path: Path, imitated: list[Sequence[Example]]
) -> None:
    log = (explored(batch.conversations[0], 2), *batch.conversations[1:])
    mixed = replace(batch, conversations=log)
    options = {**QUICK, "hidden": 8}
    updated(tmp_path / "critic", mixed, policy, options)
    updated(tmp_path / "both", mixed, policy, {**options, "off_policy": "both"})
    names = [{(e.state.conversation_id, e.state.t) for e in some} for some in imitated]
    assert names[1] - names[0] == {("0/k0/0", 1)}
    assert len(names[0]) == 15
    facts = open_sealed(tmp_path / "critic/critic")["facts"]
    assert (facts["transitions"], facts["explored"]) == (16, 1)
    with pytest.raises(BatchError, match=r"1 of 8 conversations were explored .*'0/k0/0'"):
        updated(tmp_path / "refuse", mixed, policy, {**options, "off_policy": "refuse"})
    only = tuple(explored(c, 2, 4) for c in batch.conversations)
    with pytest.raises(BatchError, match="nothing for the actor to imitate"):
        updated(tmp_path / "all", replace(batch, conversations=only), policy, options)


def test_what_is_set_aside_for_the_judge_is_not_learned_from(
    policy: PolicyRef, tmp_path: Path, imitated: list[Sequence[Example]]
) -> None:
    log = tuple(talk(i) for i in range(32))
    copies = tuple(replace(c, id=f"old/{c.id}") for c in log)
    batch = RoundBatch(0, log, policy, earlier=(copies,))
    settings = replace(SETTINGS, q=QConfig(judge_fraction=0.5))
    workspace = FolderWorkspace(tmp_path, settings)
    own = {c.id for c in workspace.own(batch)}
    assert 0 < len(own) < 32
    make("archer_lc", {**QUICK, "hidden": 8}).update(policy, batch, workspace)
    seen = {e.state.conversation_id.removeprefix("old/") for e in imitated[0]}
    assert seen <= own


def test_texts_that_the_encoder_cuts_are_told(
    encoder: str,
    policy: PolicyRef,
    batch: RoundBatch,
    tmp_path: Path,
    imitated: list[Sequence[Example]],
) -> None:
    for _ in range(2):  # also where the critic is found again
        workspace = FolderWorkspace(tmp_path, SETTINGS)
        options = {**QUICK, "encoder": encoder, "max_tokens": 20}
        make("archer", options).update(policy, batch, workspace)
        assert any("does not read how longer ones begin" in note for note in workspace.notes)
    assert imitated[0] == imitated[1]


_KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from iterpo.methods import RoundBatch
from iterpo.models import hub
from iterpo.policy_evaluation import iql
from methods.conftest import talk
from methods.test_archer import QUICK, updated

follow, steps = iql.follow, []
def die(*given):
    follow(*given)
    steps.append(1)
    if len(steps) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
iql.follow = die
policy = hub.base_policy(sys.argv[2])
batch = RoundBatch(0, tuple(talk(i) for i in range(8)), policy)
updated(Path(sys.argv[3]), batch, policy, {**QUICK, "hidden": 8})
"""


@pytest.mark.slow
def test_pain_49_killed_in_the_critic_it_ends_in_the_same_bytes(
    policy: PolicyRef, batch: RoundBatch, tmp_path: Path
) -> None:
    tests, folder = Path(__file__).parents[1], tmp_path / "killed"
    asked = [sys.executable, "-c", _KILLED, str(tests), policy.base_model, str(folder)]
    assert subprocess.run(asked, check=False).returncode == -signal.SIGKILL
    assert (folder / "critic" / METRICS).is_file(), "the first of three epochs was through"
    assert not is_sealed(folder / "critic")
    options = {**QUICK, "hidden": 8}
    new = [updated(place, batch, policy, options) for place in (folder, tmp_path / "whole")]
    assert new[0].id == new[1].id
    for file in ("critic.safetensors", "advantages.json", METRICS):
        resumed, whole = (place / "critic" / file for place in (folder, tmp_path / "whole"))
        assert resumed.read_bytes() == whole.read_bytes()


def fork(i: int, way: str) -> Conversation:
    """What is said first decides what is paid after the second turn."""
    turns = (
        Turn(Role.AGENT, "hello", scripted=True),
        Turn(Role.PARTNER, f"which way {i}"),
        Turn(Role.AGENT, way),
        Turn(Role.PARTNER, "good"),
        Turn(Role.AGENT, "go"),
    )
    paid = 1.0 if way == "left" else 0.0
    outcome = Outcome(Ending.AGREED, paid, closing_message=4)
    return Conversation(f"0/k{i}/{way}", f"k{i}", "toy", turns, outcome, "be brief")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_choice_that_pays_a_turn_later_is_learned(
    seed: int, policy: PolicyRef, tmp_path: Path
) -> None:
    """The toy game of the conformance suite: value travels back by bootstrapping alone."""
    log = tuple(fork(i, way) for i in range(16) for way in ("left", "right"))
    batch = RoundBatch(0, log, policy)
    settings = replace(SETTINGS, q=QConfig(judge_fraction=0.0, seed=seed))
    workspace = FolderWorkspace(tmp_path, settings)
    options = {
        "hidden": 32, "standardise": True, "critic_learning_rate": 1e-2, "critic_epochs": 40,
        "critic_accumulation": 1, "target_ema": 0.2, "expectile": 0.7, "beta": 3.0,
        "learning_rate": 5e-3, "epochs": 2, "batch_size": 8, "gradient_accumulation": 1,
    }  # fmt: skip
    new = make("archer_lc", options).update(policy, batch, workspace)
    told = json.loads((tmp_path / "critic/advantages.json").read_text())
    by_way = {
        way: [a for name, t, a in told if t == 1 and name.endswith(way)]
        for way in ("left", "right")
    }
    assert min(by_way["left"]) > max(by_way["right"]) + 0.3
    first = [d for c in log for d in decisions(c, 0.9) if d.state.t == 1]
    prefers = []
    for which in (policy, new):
        found = log_probs(load(which), [d.state for d in first], [d.response for d in first])
        sums = [sum(tokens) for tokens in found]
        prefers.append(sum(sums[0::2]) - sum(sums[1::2]))
    assert prefers[1] > prefers[0] + 0.5 * len(first) / 2, "left gained on right"
