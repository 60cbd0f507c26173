"""A method is two operators glued together; ST-GRPO is IterPO without credit for later turns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from iterpo import artifacts
from iterpo.domain import PolicyRef, State
from iterpo.errors import ConfigError, UnknownNameError
from iterpo.experiments.plan import MethodPlan, load_plan
from iterpo.methods import REGISTRY, RoundBatch, make, names
from iterpo.methods.workspace import FolderWorkspace, Settings
from iterpo.policy_evaluation.base import QConfig
from methods.conftest import IMPROVE, talk


def learned(
    folder: Path, method: str, gamma: float, policy: PolicyRef, batch: RoundBatch
) -> tuple[PolicyRef, list[bytes]]:
    """What a method leaves: the new policy, and the bytes of head, adapter and metrics."""
    settings = Settings(QConfig(gamma=gamma, epochs=2, learning_rate=1e-2), IMPROVE)
    new = make(method).update(policy, batch, FolderWorkspace(folder, settings))
    files = ("q/head.safetensors", "policy/adapter_model.safetensors")
    tables = ("metrics/fit_q-metrics.jsonl", "metrics/improve-metrics.jsonl")
    return new, [(folder / name).read_bytes() for name in (*files, *tables, "q_health.json")]


def test_st_grpo_equals_iterpo_at_gamma_0_number_for_number(
    policy: PolicyRef, batch: RoundBatch, tmp_path: Path
) -> None:
    myopic = learned(tmp_path / "a", "st_grpo", 0.9, policy, batch)
    at_zero = learned(tmp_path / "b", "iterpo", 0.0, policy, batch)
    assert (myopic[0].id, myopic[1]) == (at_zero[0].id, at_zero[1])
    # The twin that must differ: with credit for later turns it is another Q and another policy.
    far = learned(tmp_path / "c", "iterpo", 0.9, policy, batch)
    assert all(a != b for a, b in zip(far[1], myopic[1], strict=True))
    assert far[0].id != myopic[0].id


def test_the_update_is_two_statements_in_the_order_of_the_paper() -> None:
    said: list[object] = []

    class Spy:
        def fit_q(self, policy: object, batch: object, *, gamma: float | None = None) -> str:
            said.append(("fit_q", policy, batch, gamma))
            return "Q"

        def improve(self, policy: object, batch: object, *, reward: object) -> str:
            said.append(("improve", policy, batch, reward))
            return "pi_1"

    for name, gamma in (("iterpo", None), ("st_grpo", 0.0)):
        said.clear()
        assert make(name).update("pi_0", "D_0", Spy()) == "pi_1"  # type: ignore[arg-type]
        assert said == [("fit_q", "pi_0", "D_0", gamma), ("improve", "pi_0", "D_0", "Q")]


def test_an_unknown_method_is_named_with_those_that_exist() -> None:
    assert set(REGISTRY) <= set(names())
    with pytest.raises(UnknownNameError, match=r"'mt_grpo'.*iterpo, .*st_grpo"):
        make("mt_grpo")


def test_a_failed_conversation_gives_no_state_to_improve_at(
    policy: PolicyRef, tmp_path: Path
) -> None:
    from iterpo.domain import Ending, Outcome

    lost = replace(talk(7), outcome=Outcome(Ending.INFRASTRUCTURE_FAILURE))
    asked: set[str] = set()

    def reward(states: list[State], responses: list[object]) -> list[float]:
        asked.update(s.conversation_id for s in states)
        return [float(i) for i in range(len(states))]

    batch = RoundBatch(0, (talk(1), lost), policy)
    FolderWorkspace(tmp_path, Settings(improve=IMPROVE)).improve(policy, batch, reward=reward)  # type: ignore[arg-type]
    assert asked == {"0/k1/0"}


def test_a_finished_operator_is_a_look_up_and_leaves_no_work_behind(
    policy: PolicyRef, batch: RoundBatch, tmp_path: Path
) -> None:
    def never(*_: object) -> list[float]:
        raise AssertionError("finished work must not be done again")

    def length(_: object, responses: list[object]) -> list[float]:
        return [float(len(str(r))) for r in responses]

    workspace = FolderWorkspace(tmp_path, Settings(improve=IMPROVE))
    first = workspace.improve(policy, batch, reward=length)  # type: ignore[arg-type]
    # As after a kill between sealing the policy and clearing the trainer's folder:
    (tmp_path / "work" / "runs").mkdir(parents=True)
    (tmp_path / "work" / "runs" / "events").write_text("what a tracker wrote")
    (tmp_path / "work" / "optimizer.pt").write_bytes(b"left over")
    again = FolderWorkspace(tmp_path, Settings(improve=IMPROVE))
    assert again.improve(policy, batch, reward=never) == first
    assert not (tmp_path / "work").exists()
    assert (tmp_path / "tracking" / "events").read_text() == "what a tracker wrote"


def test_a_stored_q_scores_as_before_also_while_an_adapter_trains_on_its_backbone(
    policy: PolicyRef, batch: RoundBatch, tmp_path: Path
) -> None:
    settings = Settings(QConfig(epochs=1), IMPROVE)
    workspace = FolderWorkspace(tmp_path, settings)
    q = workspace.fit_q(policy, batch)
    from iterpo.domain import decisions

    rows = [r for c in batch.conversations for r in decisions(c, 0.9)]
    states, responses = [r.state for r in rows], [r.response for r in rows]
    before = q(states, responses)
    workspace.improve(policy, batch, reward=q)
    after = workspace.stored_q(policy, tmp_path / "q")
    assert after.backbone is q.backbone, "no second copy of the weights"
    assert after(states, responses) == before
    fresh = FolderWorkspace(tmp_path, settings).stored_q(policy, tmp_path / "q")
    assert fresh(states, responses) == before
    assert torch.isfinite(torch.tensor(before)).all()


def test_a_stage_is_filled_once_and_again_after_a_kill(tmp_path: Path) -> None:
    seen: list[Path | None] = []

    def build(folder: Path, before: Path | None) -> dict[str, int]:
        assert not list(folder.iterdir())  # what a killed attempt left is gone
        seen.append(before)
        (folder / "weights").write_text("1" if before is None else "2")
        if len(seen) == 1:
            raise KeyboardInterrupt
        return {"rows": 3}

    first = FolderWorkspace(tmp_path / "0", Settings())
    with pytest.raises(KeyboardInterrupt):
        first.stage("critic", build)
    for _ in range(2):
        assert first.stage("critic", build) == tmp_path / "0" / "critic"
    assert artifacts.open_sealed(tmp_path / "0" / "critic", "critic")["facts"] == {"rows": 3}
    second = FolderWorkspace(tmp_path / "1", Settings(), before=tmp_path / "0")
    assert (second.stage("critic", build) / "weights").read_text() == "2"
    second.stage("actor", build)  # the update before had no such stage
    assert seen == [None, None, tmp_path / "0" / "critic", None]


def test_options_of_a_method_are_its_own_and_checked_with_the_plan() -> None:
    with pytest.raises(ConfigError, match="iterpo takes no options; given beta"):
        make("iterpo", {"beta": 0.1})
    with pytest.raises(ConfigError, match=r"method\.options: st_grpo takes no options; given a, b"):
        load_plan("smoke", ["method={name: st_grpo, options: {a: 1, b: 2}}"])
    plain = load_plan("smoke")
    assert replace(plain, method=MethodPlan("iterpo", {})).identity() == plain.identity()
