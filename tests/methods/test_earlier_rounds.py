"""Ratios of earlier rounds: against plain forward passes, and which logs are refused as a whole."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from iterpo.domain import Conversation, Exploration, PolicyRef, Sampling, Turn, decisions
from iterpo.methods import RoundBatch
from iterpo.methods.earlier_rounds import earlier_rounds
from iterpo.methods.workspace import FolderWorkspace, Settings
from iterpo.models import hub
from iterpo.models.backbone import Backbone, load
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.earlier import EarlierRound
from iterpo.testing.tiny_model import tiny_model
from methods.conftest import IMPROVE, sampled_talks, talk

WARM = Sampling(temperature=1.3, max_new_tokens=5)
Q = QConfig(
    epochs=2,
    learning_rate=1e-2,
    hidden=16,
    judge_fraction=0.0,
    pool_rounds=1,
    pool_min_ess=0.0,
)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> PolicyRef:
    """pi_j: the same architecture and tokenizer with other weights."""
    return hub.base_policy(str(tiny_model(tmp_path_factory.mktemp("before"), seed=1)))


@pytest.fixture(scope="module")
def logs(policy: PolicyRef, before: PolicyRef) -> tuple[tuple[Conversation, ...], ...]:
    """D_0 of pi_j and D_1 of pi_k."""
    return sampled_talks(before, 6, WARM), sampled_talks(policy, 6, WARM, 1)


def found(
    policy: PolicyRef,
    logs: tuple[tuple[Conversation, ...], ...],
    q: QConfig = Q,
    aside: tuple[Conversation, ...] = (),
) -> tuple[EarlierRound, ...]:
    *earlier, own = logs
    batch = RoundBatch(len(earlier), own, policy, tuple(earlier))
    return earlier_rounds(lambda: load(policy), batch, aside, q)


def plain(backbone: Backbone, conversation: Conversation) -> list[float]:
    """log pi(a_t | s_t) of every action at the warm temperature, one forward pass for each."""
    out = []
    for row in decisions(conversation, 0.9):
        prompt = list(backbone.chat.prompt_ids(row.state.messages))
        ids = list(row.response.token_ids or ())
        with torch.no_grad():
            logits = backbone.model(torch.tensor([prompt + ids])).logits[0]
        scores = torch.log_softmax(logits / WARM.temperature, -1)
        out.append(sum(float(scores[len(prompt) - 1 + j, x]) for j, x in enumerate(ids)))
    return out


def test_ratios_are_those_of_one_plain_forward_pass_by_either_policy(
    policy: PolicyRef, before: PolicyRef, logs: tuple[tuple[Conversation, ...], ...]
) -> None:
    (only,) = found(policy, logs)
    assert (only.round, only.refused, only.conversations) == (0, "", logs[0])
    new, old = load(policy), load(before)
    for c, ratios in zip(only.conversations, only.log_ratios, strict=True):
        expected = [a - b for a, b in zip(plain(new, c), plain(old, c), strict=True)]
        assert ratios == pytest.approx(expected, abs=1e-3)
    assert max(abs(x) for each in only.log_ratios for x in each) > 0.1


def test_the_latest_rounds_are_taken_and_0_takes_none(
    policy: PolicyRef, before: PolicyRef, logs: tuple[tuple[Conversation, ...], ...]
) -> None:
    first, own = logs
    more = (first, (), tuple(replace(c, round=2) for c in first), own)
    assert [r.round for r in found(policy, more)] == [2]
    assert [r.round for r in found(policy, more, replace(Q, pool_rounds=9))] == [0, 2]
    assert found(policy, more, replace(Q, pool_rounds=0)) == ()
    assert found(policy, (own,)) == ()


def sampled_with(conversation: Conversation, **sampling: Any) -> Conversation:
    def changed(turn: Turn) -> Turn:
        if turn.sampled is None:
            return turn
        settings = replace(turn.sampled.sampling, **sampling)
        return replace(turn, sampled=replace(turn.sampled, sampling=settings))

    return replace(conversation, turns=tuple(changed(t) for t in conversation.turns))


def text_only(conversation: Conversation) -> Conversation:
    turns = tuple(replace(t, sampled=None) for t in conversation.turns)
    return replace(conversation, turns=turns)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (text_only, "no token ids or no log-probabilities"),
        (lambda c: sampled_with(c, top_p=0.9), "cut to a nucleus"),
        (lambda c: sampled_with(c, temperature=0.0), "greedy"),
        (lambda c: sampled_with(c, temperature=1.0), "sample all rounds alike"),
        (lambda c: sampled_with(c, max_new_tokens=9), "sample all rounds alike"),
    ],
)
def test_a_round_with_one_conversation_that_has_no_ratio_is_refused_as_a_whole(
    policy: PolicyRef, logs: tuple[tuple[Conversation, ...], ...], spoil: Any, why: str
) -> None:
    first, own = logs
    (only,) = found(policy, ((*first[:-1], spoil(first[-1])), own))
    assert why in only.refused
    assert only.conversations == ()


@pytest.mark.parametrize("spoil", [text_only, lambda c: sampled_with(c, top_p=0.9)])
def test_without_ratios_of_its_own_log_a_round_pools_none(
    policy: PolicyRef, logs: tuple[tuple[Conversation, ...], ...], spoil: Any
) -> None:
    first, own = logs
    (only,) = found(policy, (first, (*own[:-1], spoil(own[-1]))))
    assert own[-1].id in only.refused
    mixed = (*own[:-1], sampled_with(own[-1], temperature=1.0))
    assert "2 ways of sampling" in found(policy, (first, mixed))[0].refused


def test_log_probs_that_are_not_the_policys_own_are_refused(
    policy: PolicyRef, logs: tuple[tuple[Conversation, ...], ...]
) -> None:
    """The round's own log says how its policy was sampled; here another policy sampled it."""
    first, _ = logs
    (only,) = found(policy, (first, first))
    assert "differ from the policy's by" in only.refused


def test_recorded_exploration_is_left_out_and_other_exploration_refuses_the_round(
    policy: PolicyRef, logs: tuple[tuple[Conversation, ...], ...]
) -> None:
    first, own = logs
    drawn = replace(first[0], exploration=Exploration({"tone": "warm"}, 0.2, action=7))
    last = first[1].turns[-1]
    marked = replace(first[1], turns=(*first[1].turns[:-1], replace(last, off_policy=True)))
    (only,) = found(policy, ((drawn, *first[1:]), own))
    assert (only.refused, only.left_out["explored"], len(only.conversations)) == ("", 1, 5)
    assert drawn not in only.conversations
    (unknown,) = found(policy, ((first[0], marked, *first[2:]), own))
    assert "no record of the draw" in unknown.refused
    # The round's own explored conversations say nothing of how its policy speaks.
    spoken = (replace(text_only(own[0]), exploration=drawn.exploration), *own[1:])
    assert found(policy, (first, spoken))[0].refused == ""


def test_what_the_judge_is_fitted_on_is_not_pooled_in_copies(
    policy: PolicyRef, logs: tuple[tuple[Conversation, ...], ...]
) -> None:
    first, own = logs
    copy = replace(first[2], id="1/copy/0", kernel_id="elsewhere")
    (only,) = found(policy, logs, aside=(copy,))
    assert (first[2] in only.conversations, only.left_out["set_aside"]) == (False, 1)
    # k1 holds conversations 2 and 3 of each round.
    (by_kernel,) = found(policy, logs, replace(Q, split_by="kernel"), own[2:3])
    assert by_kernel.conversations == (*first[:2], *first[4:])


def test_at_gamma_0_a_text_only_log_will_do_and_no_policy_is_loaded() -> None:
    def never() -> Backbone:
        raise AssertionError("loaded")

    first = tuple(talk(i) for i in range(3))
    batch = RoundBatch(1, first, PolicyRef("x", "0" * 64), (first,))
    (only,) = earlier_rounds(never, batch, (), replace(Q, gamma=0.0))
    assert (only.refused, only.log_ratios) == ("", ((0.0, 0.0),) * 3)


def test_q_learns_from_earlier_rounds_and_improvement_stays_at_the_rounds_own_states(
    policy: PolicyRef, logs: tuple[tuple[Conversation, ...], ...], tmp_path: Path
) -> None:
    first, own = logs
    batch = RoundBatch(1, own, policy, (first,))
    heads, asked = [], set()
    for name, q in (("off", replace(Q, pool_rounds=0)), ("on", Q)):
        workspace = FolderWorkspace(tmp_path / name, Settings(q, replace(IMPROVE, steps=1)))
        fitted = workspace.fit_q(policy, batch)
        heads.append((tmp_path / name / "q/head.safetensors").read_bytes())

    def reward(states: Any, responses: Any) -> list[float]:
        asked.update(s.conversation_id for s in states)
        return [float(x or 0) for x in fitted(states, responses)]

    workspace.improve(policy, batch, reward=reward)
    assert heads[0] != heads[1]
    assert asked
    assert asked <= {c.id for c in own}
    health = json.loads((tmp_path / "on/q_health.json").read_text())
    (told,) = health["pooled"]
    assert (told["round"], told["rows"], told["refused"]) == (0, 12, "")
    assert [t["t"] for t in told["turns"]] == [1, 2]
    assert told["turns"][0]["ess"] < 6
    assert told["turns"][1]["ess"] == pytest.approx(6)
    # Six rows of weight 1 at the last turn, and at the first no more than their effective sample.
    assert 6 < told["mass"] < 6 + told["turns"][0]["ess"] + 1e-9
    assert math.isfinite(told["mass"])
    assert health["rows"] == 12
