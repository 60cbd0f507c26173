"""The deploy phase: where nobody could speak, and who is explored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from iterpo import environments
from iterpo.agents.base import Agent, Seat
from iterpo.agents.persona import draw_persona
from iterpo.artifacts import open_sealed
from iterpo.domain import Role, Split, decisions
from iterpo.errors import BatchError
from iterpo.experiments import rollout
from iterpo.experiments.events import Event, ignore
from iterpo.experiments.plan import Plan, load_plan
from iterpo.experiments.speakers import prompt_style
from iterpo.store import read_conversations
from iterpo.testing.chat_server import ChatServer
from iterpo.testing.tiny_model import tiny_model

PLAN = load_plan("smoke", ["collect.scenarios=2", "collect.per_scenario=2", "heldout.scenarios=1"])


def _silent(*_: object, **__: object) -> object:
    def factory(seat: Seat) -> Agent:
        raise TimeoutError("the server is silent")

    return factory


def test_a_batch_of_failures_names_their_cause_and_is_played_again_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("iterpo.agents.local.LocalPolicy", _silent)
        with pytest.raises(BatchError, match=r"4 of 4 .*the server is silent"):
            rollout.deploy(tmp_path, PLAN, "round-0/deploy", ignore)
    assert not (tmp_path / "round-0/deploy/manifest.json").exists()
    rollout.deploy(tmp_path, PLAN, "round-0/deploy", ignore)
    assert (tmp_path / "round-0/deploy/manifest.json").exists()


def test_training_kernels_are_explored_and_held_out_ones_never(tmp_path: Path) -> None:
    small = ["collect.scenarios=4", "collect.per_scenario=2", "heldout.scenarios=4"]
    plain = load_plan("smoke", small)
    explore = ["collect.explore={share: 0.5, scope: action, within: 2}", "q.off_policy=drop"]
    explored = load_plan("smoke", [*small, *explore])
    key = "round-0/deploy"
    for name, plan in (("plain", plain), ("explored", explored)):
        rollout.deploy(tmp_path / name, plan, key, ignore)
    facts = open_sealed(tmp_path / "explored" / key)["facts"]
    n = facts["train"]["explored"]
    assert 0 < n < 8
    assert facts["train"]["n_scored"] + n + facts["train"]["left_out"] == 8
    assert facts["heldout"]["explored"] == 0
    logs = {
        (name, split): read_conversations(tmp_path / name / key / split)
        for name in ("plain", "explored")
        for split in ("train", "heldout")
    }
    assert logs["plain", "heldout"] == logs["explored", "heldout"]
    assert all(c.exploration is None for c in logs["plain", "train"])
    assert sum(c.explored for c in logs["explored", "train"]) == n
    assert explored.collect.explore is not None
    for c in logs["explored", "train"]:
        assert c.exploration == draw_persona(explored.collect.explore, c.seed)
    told = [c for c in logs["explored", "train"] if any(t.off_policy for t in c.turns)]
    assert told
    game = environments.make("ultimatum", prompt_style="compact")
    for c in told:
        (kernel,) = (k for k in game.scenarios(Split.TRAIN, 4) if k.kernel_id == c.kernel_id)
        assert c.system == game.view(kernel, Role.AGENT, c.turns[:1]).system


def test_personas_are_worded_like_the_games_prompts() -> None:
    for style in ("full", "compact"):
        assert prompt_style(environments.make("ultimatum", prompt_style=style)) == style

    class Other:
        options = None

    assert prompt_style(Other()) == "full"  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=2048)


def _with_partner(partner: dict[str, Any], *settings: str) -> Plan:
    small = ("collect.sampling.max_new_tokens=8", "heldout.scenarios=2")
    sizes = ("collect.scenarios=3", "collect.per_scenario=2", "collect.concurrency=2")
    return load_plan("smoke", [f"partner={json.dumps(partner)}", *small, *sizes, *settings])


def _local(model: Path | str) -> dict[str, Any]:
    return {"kind": "local", "model": str(model), "sampling": {"max_new_tokens": 6}}


def _bytes(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("model", ["tiny", "nano"])
def test_a_local_partner_speaks_for_its_side_and_no_regret_is_told(
    tmp_path: Path, tiny: Path, model: str
) -> None:
    """`nano` is the policy itself: self-play."""
    plan = _with_partner(_local(tiny if model == "tiny" else "nano"))
    rollout.deploy(tmp_path, plan, "round-0/deploy", ignore)
    facts = open_sealed(tmp_path / "round-0/deploy", "deploy")["facts"]
    assert facts["train"]["regret_agent_turn"] is None
    assert (facts["partner"] == facts["policy"]) is (model == "nano")
    played = read_conversations(tmp_path / "round-0/deploy/train")
    assert len(played) == 6
    spoke = {(t.role, t.sampled.policy) for c in played for t in c.turns if t.sampled}
    assert spoke == {(Role.AGENT, facts["policy"]), (Role.PARTNER, facts["partner"])}
    for conversation in played:
        assert not conversation.j_star
        for row in decisions(conversation, 0.9):
            assert row.turn.role is Role.AGENT, "only the policy's turns are trained on"


def test_pain_49_a_deploy_with_a_local_partner_resumes_to_the_same_bytes(
    tmp_path: Path, tiny: Path
) -> None:
    plan = _with_partner(_local(tiny))
    rollout.deploy(tmp_path / "whole", plan, "round-0/deploy", ignore)

    def killing(event: Event) -> None:
        if event.stage == "train" and event.done == 3:  # in the second block
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rollout.deploy(tmp_path / "killed", plan, "round-0/deploy", killing)
    begun = _bytes(tmp_path / "killed")
    assert begun, "a finished block is kept"
    rollout.deploy(tmp_path / "killed", plan, "round-0/deploy", ignore)
    assert _bytes(tmp_path / "killed") == _bytes(tmp_path / "whole")


def test_a_served_partner_can_be_trained_against(tmp_path: Path) -> None:
    with ChatServer(lambda asked: "ok \\boxed{AGREED: split=$40}") as server:
        endpoint = {"base_url": server.base_url, "model": "m", "retries": 0}
        plan = _with_partner({"kind": "endpoint", "endpoint": endpoint})
        rollout.deploy(tmp_path, plan, "round-0/deploy", ignore)
        assert server.asked
    facts = open_sealed(tmp_path / "round-0/deploy", "deploy")["facts"]
    assert (facts["partner"], facts["train"]["n_scored"]) == ("m", 6)


def test_a_server_that_is_gone_is_the_named_cause_of_a_failed_batch(tmp_path: Path) -> None:
    endpoint = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "retries": 0}
    plan = _with_partner({"kind": "endpoint", "endpoint": endpoint})
    with pytest.raises(BatchError, match=r"6 of 6 .*127\.0\.0\.1:9.*resume"):
        rollout.deploy(tmp_path, plan, "round-0/deploy", ignore)
    assert not list(tmp_path.rglob("*.jsonl")), "resuming plays it again"
