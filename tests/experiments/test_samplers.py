"""`policy.sampler` in a plan: who draws a round's conversations, and what is known before."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from iterpo import environments
from iterpo.artifacts import open_sealed
from iterpo.collect import collect, seats
from iterpo.domain import Role, Sampling, Split
from iterpo.errors import ConfigError, ContextOverflowError, MissingExtraError, ModelError
from iterpo.experiments import preflight as module
from iterpo.experiments import rollout
from iterpo.experiments.events import ignore
from iterpo.experiments.plan import Plan, load_plan
from iterpo.experiments.speakers import Local, Scripted, seat
from iterpo.models import hub
from iterpo.store import read_conversations
from iterpo.testing.tiny_model import tiny_model
from vllm_stand_in import LLM, install

KEY = "round-0/deploy"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=1024)


@pytest.fixture(scope="module", autouse=True)
def _trainer() -> None:
    """TRL looks for vLLM when it is imported, and would use more of it than the stand-in has."""
    from trl import GRPOTrainer  # noqa: F401


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[LLM]:
    return install(monkeypatch, tmp_path / "site")


def plan(tiny: Path, *settings: str) -> Plan:
    small = [
        f"policy.model={tiny}", "policy.dtype=auto",
        "collect.scenarios=2", "collect.per_scenario=1",
        "heldout.scenarios=1", "heldout.per_scenario=1", "collect.sampling.max_new_tokens=3",
        "improve.sampling.max_new_tokens=3",
    ]  # fmt: skip
    return load_plan("smoke", [*small, *settings])


def test_a_round_is_drawn_by_vllm_and_says_so(vllm: type[LLM], tiny: Path, tmp_path: Path) -> None:
    given = plan(tiny, "policy.sampler=vllm", "policy.vllm.memory_share=0.5")
    rollout.deploy(tmp_path / "a", given, KEY, ignore)
    facts = open_sealed(tmp_path / "a" / KEY)["facts"]
    assert facts["sampler"] == "vllm 0.31.0"
    (engine,) = vllm.started  # one for training and held-out kernels
    assert engine.arguments["gpu_memory_utilization"] == 0.5
    assert engine.ended == 1
    n_drawn = 0
    for split in ("train", "heldout"):
        for conversation in read_conversations(tmp_path / "a" / KEY / split):
            for turn in conversation.turns[1:]:
                if turn.role is Role.AGENT:
                    assert turn.sampled is not None
                    assert turn.sampled.logprobs is not None
                    assert turn.sampled.sampling == given.collect.sampling
                    n_drawn += 1
    assert n_drawn == sum(len(prompts) for prompts, _, _ in engine.asked) > 0


def test_the_local_sampler_is_the_default_also_where_vllm_is_installed(
    vllm: type[LLM], tiny: Path, tmp_path: Path
) -> None:
    rollout.deploy(tmp_path / "a", plan(tiny), KEY, ignore)
    assert open_sealed(tmp_path / "a" / KEY)["facts"]["sampler"] == "local"
    assert not vllm.started


def test_an_engine_ends_with_a_round_that_fails(
    vllm: type[LLM], tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(rollout, "collect_into", full)
    with pytest.raises(OSError, match="no space"):
        rollout.deploy(tmp_path, plan(tiny, "policy.sampler=auto"), KEY, ignore)
    assert [engine.ended for engine in vllm.started] == [1]


def test_an_engine_ends_if_the_other_side_can_not_be_seated(vllm: type[LLM], tiny: Path) -> None:
    agent = Local(hub.base_policy(str(tiny)), Sampling(max_new_tokens=3), sampler="vllm")
    partner = Local(replace(agent.policy, base_sha256="0" * 64))
    with pytest.raises(ModelError):
        seat(environments.make("ultimatum", prompt_style="compact"), agent, partner)
    assert [engine.ended for engine in vllm.started] == [1]


def test_both_sides_of_self_play_share_an_engine(vllm: type[LLM], tiny: Path) -> None:
    game = environments.make("ultimatum", prompt_style="compact")
    agent = Local(hub.base_policy(str(tiny)), Sampling(max_new_tokens=3), sampler="vllm")
    partner = Local(agent.policy, Sampling(max_new_tokens=2))
    seating = seat(game, agent, partner)
    assert len(seating.engines) == len(vllm.started) == 1
    kernels = game.scenarios(Split.TRAIN, 1)
    (conversation,) = collect(seating.table, seats(kernels, 1, round=0, seed=1), attempts=1)
    assert conversation.outcome.ending.scored, conversation.outcome.detail
    lengths = {params.max_tokens for _, asked, _ in vllm.started[0].asked for params in asked}
    assert lengths == {2, 3}  # each side draws with its own settings
    seating.close()
    assert vllm.started[0].ended == 1
    assert seat(game, partner, Scripted()).sampler == "local"


def test_what_stands_against_vllm_is_told_before_a_run(
    vllm: type[LLM], tiny: Path, tmp_path: Path
) -> None:
    def check(*settings: str) -> None:
        module.preflight(tmp_path, plan(tiny, *settings), "preflight", ignore)

    with pytest.raises(ConfigError) as caught:
        check("policy.sampler=vllm", "policy.dtype=float32", "collect.sampling.temperature=5",
              "policy.vllm.context=2000")  # fmt: skip
    for part in ("sampling.temperature", "dtype: given float32", "up to the 1024 tokens"):
        assert part in str(caught.value)
    with pytest.raises(ContextOverflowError, match="reads 100 here"):
        check("policy.sampler=vllm", "policy.vllm.context=100")
    check("policy.vllm.context=100")  # nobody looks at it
    check("policy.sampler=vllm")
    assert not vllm.started


@pytest.mark.parametrize("setting", ["policy.dtype=float32", "collect.sampling.temperature=2.5"])
def test_auto_plays_what_vllm_would_refuse_with_the_local_sampler(
    vllm: type[LLM], tiny: Path, tmp_path: Path, setting: str
) -> None:
    given = plan(tiny, "policy.sampler=auto", setting)
    module.preflight(tmp_path, given, "preflight", ignore)
    rollout.deploy(tmp_path / "a", given, KEY, ignore)
    assert open_sealed(tmp_path / "a" / KEY)["facts"]["sampler"] == "local"
    assert not vllm.started


def test_vllm_that_is_not_there_is_asked_for_in_vain(tiny: Path, tmp_path: Path) -> None:
    if find_spec("vllm"):
        pytest.skip("vLLM is installed here")
    with pytest.raises(MissingExtraError, match=r"iterpo\[train,vllm\]"):
        module.preflight(tmp_path, plan(tiny, "policy.sampler=vllm"), "preflight", ignore)
    module.preflight(tmp_path, plan(tiny, "policy.sampler=auto"), "preflight", ignore)


def test_identity_follows_the_sampler_and_not_the_memory(tiny: Path) -> None:
    before = plan(tiny).identity()
    by_vllm = plan(tiny, "policy.sampler=vllm").identity()
    assert by_vllm != before
    assert plan(tiny, "policy.vllm.tensor_parallel=2").identity() == before
    assert plan(tiny, "policy.sampler=vllm", "policy.vllm.memory_share=0.5").identity() == by_vllm
    assert plan(tiny, "policy.sampler=vllm", "policy.vllm.tensor_parallel=2").identity() != by_vllm
    with pytest.raises(ConfigError, match=r"memory_share: given 0.*above 0"):
        plan(tiny, "policy.vllm.memory_share=0")
