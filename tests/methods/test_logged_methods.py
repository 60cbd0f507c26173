"""MT-SFT and MT-KTO: which turns of a batch they learn from, and from which reference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from iterpo.artifacts import open_sealed, seal
from iterpo.domain import Conversation, Ending, Exploration, Outcome, PolicyRef, Response, State
from iterpo.errors import BatchError, ConfigError
from iterpo.experiments import learn
from iterpo.experiments.events import ignore
from iterpo.experiments.lineage import policy_of_round
from iterpo.experiments.plan import load_plan
from iterpo.methods import RoundBatch, make
from iterpo.methods.workspace import FolderWorkspace, Settings
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_improvement.logged import LoggedConfig
from iterpo.store import write_conversations
from methods.conftest import IMPROVE, talk

LOST = Outcome(Ending.TURN_LIMIT, 0.0)


def mixed(n: int = 8) -> tuple[Conversation, ...]:
    """Every third conversation ends without agreement."""
    return tuple(replace(talk(i), outcome=LOST) if i % 3 == 2 else talk(i) for i in range(n))


class Spy:
    """A workspace that trains nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.learned: list[tuple[str, Any, LoggedConfig, dict[str, Any]]] = []
        self.noted: list[str] = []
        self.asked: list[PolicyRef] = []
        for method in ("mt_sft", "mt_kto"):
            monkeypatch.setattr(f"iterpo.methods.{method}.learner", self._learner)

    def _learner(self, name: str, data: Any, config: LoggedConfig, **more: Any) -> str:
        self.learned.append((name, data, config, more))
        return "training"

    def own(self, batch: RoundBatch) -> tuple[Conversation, ...]:
        return batch.conversations

    def learn(self, policy: PolicyRef, batch: RoundBatch, training: str) -> str:
        assert training == "training"
        return "pi_1"

    def note(self, text: str) -> None:
        self.noted.append(text)

    def log_probs(
        self, policy: PolicyRef, states: Sequence[State], responses: Sequence[Response]
    ) -> list[tuple[float, ...]]:
        self.asked.append(policy)
        return [(0.0,)] * len(states)


def batch_of(conversations: Sequence[Conversation]) -> RoundBatch:
    return RoundBatch(1, tuple(conversations), PolicyRef("base", "0" * 64))


NOW = PolicyRef("base", "0" * 64, "adapter", "1" * 64, "r0-00000000", 1)


def test_mt_sft_learns_from_all_turns_of_agreed_conversations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spy = Spy(monkeypatch)
    assert make("mt_sft").update(NOW, batch_of(mixed()), spy) == "pi_1"  # type: ignore[arg-type, comparison-overlap]
    ((name, talks, config, _),) = spy.learned
    assert name == "sft"
    assert [t[0].state.conversation_id for t in talks] == [f"0/k{i}/0" for i in (0, 1, 3, 4, 6, 7)]
    assert {len(t) for t in talks} == {2}
    # Appendix E.4.
    assert config == LoggedConfig(1e-5, 1, None, batch_size=1, gradient_accumulation=8)


def test_mt_kto_learns_from_every_turn_with_the_initial_policy_as_its_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spy = Spy(monkeypatch)
    batch = batch_of(mixed())
    make("mt_kto").update(NOW, batch, spy)  # type: ignore[arg-type]
    ((name, turns, config, more),) = spy.learned
    assert name == "kto"
    assert [t.agreed for t in turns] == [i % 3 != 2 for i in range(8) for _ in range(2)]
    # Appendix E.5.
    assert config == LoggedConfig(1e-5, 1, None, batch_size=2, gradient_accumulation=4)
    assert more["beta"] == 0.1
    more["reference"]([], [])
    assert spy.asked == [batch.initial_policy] != [NOW]
    assert more["reference_policy"] == batch.initial_policy.id


def test_a_round_without_agreement_leaves_mt_sft_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spy = Spy(monkeypatch)
    lost = [replace(c, outcome=LOST) for c in mixed()]
    assert make("mt_sft").update(NOW, batch_of(lost), spy) is NOW  # type: ignore[arg-type]
    assert spy.learned == []
    assert "none of 8 conversations ended in agreement" in spy.noted[0]


def test_mt_kto_trains_on_one_class_alone_and_needs_two_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spy = Spy(monkeypatch)
    lost = [replace(c, outcome=LOST) for c in mixed()]
    make("mt_kto").update(NOW, batch_of(lost), spy)  # type: ignore[arg-type]
    assert len(spy.learned[0][1]) == 16
    assert "all 16 agent turns are not agreed" in spy.noted[0]
    one = batch_of([talk(1, n_actions=1)])
    assert make("mt_kto").update(NOW, one, spy) is NOW  # type: ignore[arg-type]
    assert len(spy.learned) == 1
    assert "the KL term needs 2" in spy.noted[1]


@pytest.mark.parametrize("method", ["mt_kto", "mt_sft"])
def test_turns_of_explored_conversations_are_refused_or_dropped(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(monkeypatch)
    warm = replace(talk(1), exploration=Exploration({"tone": "warm"}, 0.5))
    batch = batch_of([talk(0), warm, replace(talk(2), outcome=LOST)])
    with pytest.raises(BatchError, match=r"1 of 3 .*method\.options\.off_policy"):
        make(method).update(NOW, batch, spy)  # type: ignore[arg-type]
    make(method, {"off_policy": "drop"}).update(NOW, batch, spy)  # type: ignore[arg-type]
    data = spy.learned[0][1]
    flat = [e for t in data for e in t] if method == "mt_sft" else data
    assert "0/k1/0" not in {e.state.conversation_id for e in flat}


def test_options_are_checked_with_the_plan() -> None:
    with pytest.raises(ConfigError) as caught:
        load_plan("smoke", ["method={name: mt_kto, options: {beta: 0, batch_size: 1, epoch: 2}}"])
    told = str(caught.value)
    for name in ("options.beta", "options.batch_size", "options.epoch"):
        assert f"method.{name}" in told
    with pytest.raises(ConfigError, match=r"method\.options\.learning_rate"):
        load_plan("smoke", ["method={name: mt_sft, options: {learning_rate: -1}}"])


SETTINGS = Settings(QConfig(judge_fraction=0.0), IMPROVE)
FAST = {"learning_rate": 1e-2, "gradient_accumulation": 2}


def left(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("method", ["mt_kto", "mt_sft"])
def test_an_update_leaves_a_policy_and_metrics_and_repeats(
    method: str, policy: PolicyRef, tmp_path: Path
) -> None:
    batch = RoundBatch(0, mixed(), policy)
    new = [
        make(method, FAST).update(policy, batch, FolderWorkspace(tmp_path / name, SETTINGS))
        for name in "ab"
    ]
    assert new[0].id == new[1].id != policy.id
    assert new[0].round == 1
    one, other = left(tmp_path / "a"), left(tmp_path / "b")
    assert one == other
    assert {"policy/adapter_model.safetensors", "metrics/improve-metrics.jsonl"} <= set(one)
    assert not (tmp_path / "a" / "work").exists()


def test_what_is_set_aside_for_the_judge_is_not_learned_from(
    policy: PolicyRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = RoundBatch(0, mixed(40), policy)
    workspace = FolderWorkspace(tmp_path, replace(SETTINGS, q=QConfig(judge_fraction=0.5)))
    kept = {c.id for c in workspace.own(batch)}
    assert 10 < len(kept) < 30
    seen: set[str] = set()

    def learner(name: str, turns: Any, *_: Any, **__: Any) -> str:
        seen.update(t.state.conversation_id for t in turns)
        return name

    monkeypatch.setattr("iterpo.methods.mt_kto.learner", learner)
    monkeypatch.setattr(workspace, "learn", lambda *_: policy)
    make("mt_kto").update(policy, batch, workspace)
    assert seen == kept


def test_the_reference_stays_the_initial_policy_over_the_rounds(
    policy: PolicyRef, tmp_path: Path
) -> None:
    """In round 1 the policy has moved: log-ratios to pi_0 are not 0 before the first step."""
    batch = RoundBatch(0, mixed(), policy)
    made = make("mt_kto", {**FAST, "steps": 1, "learning_rate": 5e-2})
    first = made.update(policy, batch, FolderWorkspace(tmp_path / "0", SETTINGS))
    again = FolderWorkspace(tmp_path / "1", SETTINGS)
    made.update(first, RoundBatch(1, batch.conversations, policy), again)
    rows = [(tmp_path / str(i) / "metrics" / "improve-metrics.jsonl").read_text() for i in (0, 1)]
    start, later = (json.loads(text.splitlines()[0])["values"] for text in rows)
    assert start["reward_agreed"] == pytest.approx(0, abs=1e-5)
    assert abs(later["reward_agreed"]) > 1e-3
    # And where the initial policy is itself an adapter, it is that adapter.
    own = FolderWorkspace(tmp_path / "2", SETTINGS)
    made.update(first, RoundBatch(1, batch.conversations, first), own)
    text = (tmp_path / "2" / "metrics" / "improve-metrics.jsonl").read_text()
    same = json.loads(text.splitlines()[0])["values"]
    assert same["reward_agreed"] == pytest.approx(0, abs=1e-5)


def test_an_update_without_anything_to_imitate_deploys_the_same_policy_again(
    policy: PolicyRef, tmp_path: Path
) -> None:
    plan = load_plan("smoke", [f"policy.model={policy.base_model}", "method.name=mt_sft"])
    place = tmp_path / "round-0" / "deploy" / "train"
    write_conversations(place / "conversations.jsonl", [replace(c, outcome=LOST) for c in mixed()])
    seal(place, "conversations", {})
    learn.update(tmp_path, plan, "round-0/update", ignore)
    facts = open_sealed(tmp_path / "round-0" / "update")["facts"]
    assert facts["policy"] == facts["parent"] == policy.id
    assert facts["next"] == "parent"
    assert facts["verdict"] == "unchanged"
    assert "nothing to imitate" in facts["notes"][0]
    assert policy_of_round(tmp_path, plan, 1).id == policy.id
