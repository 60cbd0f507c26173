"""What the policy makes of explored turns: ratios against plain forward passes, and its answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import iterpo
from iterpo.domain import Conversation, Exploration, PolicyRef, Sampling, Turn, decisions, derive
from iterpo.methods import RoundBatch
from iterpo.methods.corrections import explored_ratios, responder
from iterpo.methods.workspace import FolderWorkspace, Settings
from iterpo.models import hub
from iterpo.models.backbone import load
from iterpo.models.generation import generate
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.earlier import EarlierRound
from iterpo.testing.tiny_model import tiny_model
from methods.conftest import IMPROVE, sampled_talks

WARM = Sampling(temperature=1.3, max_new_tokens=5)
Q = QConfig(
    epochs=1, hidden=8, heads=2, judge_fraction=0.0, estimator="sarsa", off_policy="weight",
    td_iterations=2, pool_min_ess=0.0,
)  # fmt: skip
BLUNT = Exploration({"tone": "blunt"}, 0.5)


@pytest.fixture(scope="module")
def persona(tmp_path_factory: pytest.TempPathFactory) -> PolicyRef:
    """Who speaks for the policy while it explores: other weights instead of an instruction."""
    return hub.base_policy(str(tiny_model(tmp_path_factory.mktemp("persona"), seed=1)))


@pytest.fixture(scope="module")
def own(policy: PolicyRef) -> tuple[Conversation, ...]:
    return sampled_talks(policy, 8, WARM)


@pytest.fixture(scope="module")
def explored(persona: PolicyRef) -> tuple[Conversation, ...]:
    return tuple(mark(c, BLUNT) for c in sampled_talks(persona, 4, WARM, 1))


def mark(c: Conversation, drawn: Exploration | None, *only: int) -> Conversation:
    turns = tuple(
        replace(t, off_policy=bool(t.sampled) and (not only or m in only))
        for m, t in enumerate(c.turns)
    )
    return replace(c, round=0, turns=turns, exploration=drawn)


def asked(policy: PolicyRef, *log: Conversation, config: QConfig = Q) -> EarlierRound | None:
    return explored_ratios(lambda: load(policy), log, config)


def plain(policy: PolicyRef, conversation: Conversation) -> list[float]:
    backbone, out = load(policy), []
    for row in decisions(conversation, 0.9):
        prompt = list(backbone.chat.prompt_ids(row.state.messages))
        ids = list(row.response.token_ids or ())
        with torch.no_grad():
            logits = backbone.model(torch.tensor([prompt + ids])).logits[0]
        scores = torch.log_softmax(logits / WARM.temperature, -1)
        out.append(sum(float(scores[len(prompt) - 1 + j, x]) for j, x in enumerate(ids)))
    return out


def test_ratios_are_the_policys_over_the_personas_and_1_where_the_policy_spoke(
    policy: PolicyRef,
    persona: PolicyRef,
    own: tuple[Conversation, ...],
    explored: tuple[Conversation, ...],
) -> None:
    first = mark(explored[1], replace(BLUNT, action=1), 2)
    found = asked(policy, *own, explored[0], first)
    assert found is not None
    assert (found.refused, found.conversations) == ("", (explored[0], first))
    new, old = plain(policy, explored[0]), plain(persona, explored[0])
    assert found.log_ratios[0] == pytest.approx(
        [a - b for a, b in zip(new, old, strict=True)], abs=1e-3
    )
    assert found.log_ratios[1][1] == 0.0
    assert abs(found.log_ratios[1][0]) > 0.1


def without(c: Conversation, change: Callable[[Turn], Turn]) -> Conversation:
    return replace(c, turns=tuple(change(t) if t.sampled else t for t in c.turns))


def sampled(**changes: object) -> Callable[[Turn], Turn]:
    return lambda t: replace(t, sampled=replace(t.sampled, **changes))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (sampled(logprobs=None), "no token ids or no log-probabilities"),
        (sampled(sampling=replace(WARM, temperature=0.0)), "greedy"),
        (sampled(sampling=replace(WARM, top_p=0.9)), "cut to a nucleus"),
    ],
)
def test_all_or_none_are_weighed(
    policy: PolicyRef,
    own: tuple[Conversation, ...],
    explored: tuple[Conversation, ...],
    change: Callable[[Turn], Turn],
    why: str,
) -> None:
    found = asked(policy, *own, *explored[:3], without(explored[3], change))
    assert found is not None
    assert why in found.refused
    assert found.conversations == ()


def test_pain_58_weights_that_are_all_1_are_an_error(
    policy: PolicyRef, own: tuple[Conversation, ...]
) -> None:
    """Marked, but said as the policy says it: the personas' instruction never reached the model."""
    found = asked(policy, *own[:6], *(mark(c, BLUNT) for c in own[6:]))
    assert found is not None
    assert "all weights are 1" in found.refused


def test_what_has_no_density_is_left_out_and_counted(
    policy: PolicyRef, own: tuple[Conversation, ...], explored: tuple[Conversation, ...]
) -> None:
    chosen = replace(explored[1], exploration=Exploration({"choice": "optimistic"}, 0.5, 1))
    found = asked(policy, *own, explored[0], chosen, mark(explored[2], None))
    assert found is not None
    assert found.conversations == explored[:1]
    assert found.left_out == {"chosen": 1, "unrecorded": 1}
    assert asked(policy, *own) is None
    assert asked(policy, *explored, config=replace(Q, off_policy="drop")) is None


def test_answers_are_drawn_as_the_log_was_by_seeds_of_their_own(
    policy: PolicyRef, own: tuple[Conversation, ...]
) -> None:
    config = replace(Q, estimator="fitted_q", off_policy="drop", td_responses=3)
    assert responder(lambda: load(policy), own, Q, WARM) is None
    respond = responder(lambda: load(policy), own, config, Sampling())
    assert respond is not None
    rows = [d for c in own[:3] for d in decisions(c, 0.9)][1::2]
    said = respond([d.state for d in rows])
    assert [len(each) for each in said] == [3, 3, 3]
    backbone = load(policy)
    for row, each in zip(rows, said, strict=True):
        prompt = backbone.chat.prompt_ids(row.state.messages)
        seeds = [derive(42, "fitted-q", row.state.conversation_id, 2, k) for k in range(3)]
        alone = generate(backbone, [prompt] * 3, WARM, seeds)
        assert [r.token_ids for r in each] == [g.token_ids for g in alone]
        assert len(set(each)) > 1
    tight = replace(WARM, max_new_tokens=backbone.context_length)
    unsampled = [replace(c, turns=tuple(replace(t, sampled=None) for t in c.turns)) for c in own]
    full = responder(lambda: backbone, unsampled, config, tight)
    assert full is not None
    assert full([rows[0].state]) == [[]]


@pytest.mark.parametrize(
    ("estimator", "off_policy", "used"),
    [
        ("monte_carlo", "drop", 0),
        ("monte_carlo", "weight", 8),
        ("sarsa", "weight", 8),
        ("fitted_q", "drop", 8),
    ],
)
def test_a_workspace_brings_what_the_estimator_needs(
    policy: PolicyRef,
    own: tuple[Conversation, ...],
    explored: tuple[Conversation, ...],
    tmp_path: Path,
    estimator: str,
    off_policy: str,
    used: int,
) -> None:
    config = replace(Q, estimator=estimator, off_policy=off_policy, td_responses=2)
    batch = RoundBatch(0, (*own, *explored), policy)
    ids = []
    for place in (tmp_path / "a", tmp_path / "b"):
        workspace = FolderWorkspace(place, Settings(config, IMPROVE))
        ids.append(workspace.fit_q(policy, batch).id)
        told = json.loads((place / "q_health.json").read_text())
        assert told["estimator"] == estimator
        assert sum(r["rows"] for r in told["corrected"]) == used
        assert told["left_out"]["explored_rows"] == 8
    assert ids[0] == ids[1]
    q = iterpo.fit_q(
        policy, batch.conversations, epochs=1, hidden=8, heads=2, estimator=estimator,
        off_policy=off_policy, td_iterations=2, td_responses=2, pool_min_ess=0.0,
    )  # fmt: skip
    assert q.id == ids[0]
