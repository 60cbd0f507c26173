"""Evidence: log-probs, distances and gains against plain computations, and whole verdicts."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from iterpo.domain import (
    Conversation,
    PolicyRef,
    Response,
    Sampling,
    Turn,
    decisions,
)
from iterpo.errors import BatchError
from iterpo.methods import RoundBatch
from iterpo.methods.asked import ask
from iterpo.methods.evidence import _kl
from iterpo.methods.likelihood import log_probs
from iterpo.methods.verdict import VerdictConfig
from iterpo.methods.workspace import FolderWorkspace, Settings
from iterpo.models.backbone import load
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.split import set_aside
from methods.conftest import IMPROVE, sampled_talks, talk

Q = QConfig(epochs=2, learning_rate=1e-2, hidden=16, heads=2, judge_fraction=0.5)
ONE_STEP = replace(IMPROVE, sampling=Sampling(max_new_tokens=5), steps=1)
ASKED = VerdictConfig(states=6, candidates=2)


@pytest.fixture(scope="module")
def talks(policy: PolicyRef) -> tuple[Conversation, ...]:
    return sampled_talks(policy, 16, Sampling(max_new_tokens=5))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_that_the_sampler_stored(policy: PolicyRef, temperature: float) -> None:
    logged = sampled_talks(policy, 3, Sampling(temperature=temperature, max_new_tokens=5))
    rows = [d for c in logged for d in decisions(c, 0.9)]
    found = log_probs(
        load(policy), [d.state for d in rows], [d.response for d in rows], temperature
    )
    for values, row in zip(found, rows, strict=True):
        assert row.turn.sampled is not None
        assert values == pytest.approx(row.turn.sampled.logprobs, abs=1e-4)


def test_log_probs_are_those_of_one_plain_forward_pass_for_each_pair(
    policy: PolicyRef, talks: tuple[Conversation, ...]
) -> None:
    backbone = load(policy)
    rows = [d for c in talks[:3] for d in decisions(c, 0.9)]
    states = [rows[0].state, *(d.state for d in rows), rows[0].state]
    said = [Response("ok ok"), *(d.response for d in rows), Response("", ())]
    found = log_probs(backbone, states, said, max_batch_tokens=90)
    for state, response, values in zip(states, said, found, strict=True):
        prompt = list(backbone.chat.prompt_ids(state.messages))
        ids = list(backbone.chat.response_token_ids(response))
        with torch.no_grad():
            logits = backbone.model(torch.tensor([prompt + ids])).logits[0]
        scores = torch.log_softmax(logits, -1)
        plain = [float(scores[len(prompt) - 1 + j, token]) for j, token in enumerate(ids)]
        assert values == pytest.approx(plain, abs=1e-5)
    assert found[-1] == ()


def test_the_distance_of_two_policies_by_hand() -> None:
    """log old - log new is ln 2, then -ln 2: (2 - 1 - ln 2) + (1/2 - 1 + ln 2) = 1/2."""
    ln2 = math.log(2)
    assert _kl([(-2.0, -1.0)], [(-2.0 + ln2, -1.0 - ln2)]) == pytest.approx(0.5)
    assert _kl([(-2.0, -1.0), (-1.0,)], [(-2.0 + ln2, -1.0 - ln2), (-1.0,)]) == pytest.approx(0.25)
    # Averaged over the new policy's own draws it is KL(new || old), exactly.
    new, old = (0.75, 0.25), (0.5, 0.5)
    exact = sum(p * math.log(p / q) for p, q in zip(new, old, strict=True))
    draws = [(math.log(new[k]),) for k in (0, 0, 0, 1)]
    assert _kl(draws, [(math.log(0.5),)] * 4) == pytest.approx(exact)


def judged(
    folder: Path, policy: PolicyRef, talks: Sequence[Conversation], q: QConfig = Q, **improve: Any
) -> Any:
    batch = RoundBatch(0, tuple(talks), policy)
    settings = Settings(q, replace(ONE_STEP, **improve), verdict=ASKED)
    workspace = FolderWorkspace(folder, settings)
    reward = workspace.fit_q(policy, batch)
    new = workspace.improve(policy, batch, reward=reward)
    return workspace.verdict(policy, new, batch)


def test_after_an_interruption_the_verdict_is_the_same(
    policy: PolicyRef, talks: tuple[Conversation, ...], tmp_path: Path
) -> None:
    """One workspace has trained and still holds what it trained; the other finds it all stored."""
    batch, settings = RoundBatch(0, talks, policy), Settings(Q, ONE_STEP, verdict=ASKED)
    workspace = FolderWorkspace(tmp_path, settings)
    new = workspace.improve(policy, batch, reward=workspace.fit_q(policy, batch))
    first = workspace.verdict(policy, new, batch)
    assert FolderWorkspace(tmp_path, settings).verdict(policy, new, batch) == first


def test_an_update_is_judged_by_what_it_never_saw(
    policy: PolicyRef, talks: tuple[Conversation, ...], tmp_path: Path
) -> None:
    found = judged(tmp_path, policy, talks).evidence
    assert found.moved
    assert found.kl > 0
    assert found.logprob_gap < 1e-4
    assert found.independent
    assert found.counts["states"] == 6
    assert found.counts["candidates"] == 12
    assert found.counts["judge_conversations"] == found.counts["weighed"] == 8
    assert None not in (found.judge_gain, found.q_gain, found.off_policy, found.first_order)
    assert found.confidence == pytest.approx(1 - 0.05 / 3)
    assert found.off_policy.n == 8
    assert 1 <= found.off_policy.ess < 8


def test_the_judge_is_fitted_on_what_q_never_saw(
    policy: PolicyRef, talks: tuple[Conversation, ...], tmp_path: Path, monkeypatch: Any
) -> None:
    from iterpo.methods import workspace as module

    seen: list[set[str]] = []

    def spy(name: str) -> None:
        real = getattr(module, name)

        def fit(backbone: Any, conversations: Any, *rest: Any) -> Any:
            seen.append({c.id for c in conversations})
            return real(backbone, conversations, *rest)

        monkeypatch.setattr(module, name, fit)

    spy("fit_q")
    spy("fit_judge")
    judged(tmp_path, policy, talks)
    ours, theirs = seen
    assert not ours & theirs
    assert ours | theirs == {c.id for c in talks}


def test_a_policy_that_did_not_move_is_unchanged(
    policy: PolicyRef, talks: tuple[Conversation, ...], tmp_path: Path
) -> None:
    found = judged(tmp_path, policy, talks, learning_rate=1e-30)
    assert found.verdict == "unchanged"
    assert "exactly like" in found.why
    assert found.evidence.kl == pytest.approx(0.0, abs=1e-9)
    assert found.evidence.judge_gain.mean == pytest.approx(0.0, abs=1e-6)
    assert found.evidence.off_policy.gain.mean == pytest.approx(0.0, abs=1e-5)
    assert found.evidence.off_policy.ess == pytest.approx(8, abs=1e-3)


def test_pain_62_a_text_only_log_gets_a_judge_but_no_ratio(
    policy: PolicyRef, tmp_path: Path
) -> None:
    found = judged(tmp_path, policy, [talk(i) for i in range(16)]).evidence
    assert found.judge_gain is not None
    assert (found.off_policy, found.first_order) == (None, None)
    assert any("no token ids" in note for note in found.notes)


def test_where_some_carry_no_ratio_none_is_weighed(
    policy: PolicyRef, talks: tuple[Conversation, ...]
) -> None:
    """Those left would be a selection: what ended early has no turn that could lack one."""

    def text_only(c: Conversation) -> Conversation:
        turns = [replace(t, sampled=None) if i == 4 else t for i, t in enumerate(c.turns)]
        return replace(c, turns=tuple(turns))

    silent = replace(talk(99), turns=talk(99).turns[:2], id="silent")
    config = VerdictConfig(conversations=8)
    whole = ask(talks, (*talks, silent, replace(silent, id="other")), config, Q, Sampling())
    assert (len(whole.weighed), len(whole.silent), whole.notes) == (8, 1, ())
    mixed = (*talks[:13], *map(text_only, talks[13:]), silent)
    found = ask(talks, mixed, config, Q, Sampling())
    assert (found.weighed, found.silent) == ((), ())
    assert found.counts["not_weighable"] == 3
    assert found.notes[0].startswith("3 of 16 carry no ratio, so none is weighed: conversation")


def test_a_log_that_another_policy_sampled_is_not_weighed(
    policy: PolicyRef, talks: tuple[Conversation, ...], tmp_path: Path
) -> None:
    def claimed(turn: Turn) -> Turn:
        if turn.sampled is None or turn.sampled.logprobs is None:
            return turn
        other = tuple(p - 0.1 for p in turn.sampled.logprobs)
        return replace(turn, sampled=replace(turn.sampled, logprobs=other))

    strange = [replace(c, turns=tuple(claimed(t) for t in c.turns)) for c in talks]
    found = judged(tmp_path, policy, strange).evidence
    assert found.logprob_gap == pytest.approx(0.1, abs=1e-4)
    assert found.off_policy is None
    assert any("differ from the old policy" in note for note in found.notes)


def test_without_a_judge_nothing_is_called_improved(
    policy: PolicyRef, talks: tuple[Conversation, ...], tmp_path: Path
) -> None:
    found = judged(tmp_path, policy, talks, replace(Q, judge_fraction=0.0))
    assert found.verdict in ("unchanged", "refused")
    assert not found.evidence.independent
    assert not (tmp_path / "judge").exists()


def test_a_log_too_small_for_a_judge_is_all_for_q_and_the_verdict_says_so(
    policy: PolicyRef, batch: RoundBatch, tmp_path: Path
) -> None:
    """With the defaults, on eight conversations of which one alone succeeds."""
    won = next(c.id for c in set_aside(batch.conversations, Q)[0])
    talks = [
        replace(c, outcome=replace(c.outcome, reward=float(c.id == won)))
        for c in batch.conversations
    ]
    found = judged(tmp_path, policy, talks, QConfig(epochs=1))
    assert json.loads((tmp_path / "q_health.json").read_text())["rows"] == 16
    assert not found.evidence.independent
    assert not (tmp_path / "judge").exists()
    assert found.evidence.notes[0].startswith("too few conversations for a judge: judge_fraction")
    assert found.verdict != "improved"


def test_a_judge_that_cannot_be_fitted_is_told_and_the_update_goes_on(
    policy: PolicyRef, talks: tuple[Conversation, ...], tmp_path: Path, monkeypatch: Any
) -> None:
    from iterpo.methods import workspace as module

    def fails(*_: Any) -> Any:
        raise BatchError("all 16 returns are 1")

    monkeypatch.setattr(module, "fit_judge", fails)
    found = judged(tmp_path, policy, talks)
    assert found.evidence.judge_gain is None
    assert found.evidence.notes == ("no judge: all 16 returns are 1",)
    assert found.evidence.counts["judge_conversations"] == 0
    assert found.evidence.off_policy is not None


def test_no_states_no_verdict(policy: PolicyRef, batch: RoundBatch, tmp_path: Path) -> None:
    settings = Settings(Q, ONE_STEP, verdict=VerdictConfig(states=0))
    assert FolderWorkspace(tmp_path, settings).verdict(policy, policy, batch) is None


def test_without_a_verdict_nothing_is_set_aside(
    policy: PolicyRef, talks: tuple[Conversation, ...], tmp_path: Path
) -> None:
    """A judge that nobody asks would cost Q its share of the conversations."""
    batch = RoundBatch(0, talks, policy)
    assert set_aside(talks, Q)[1], "with a verdict there would be a judge"
    settings = Settings(Q, ONE_STEP, verdict=VerdictConfig(states=0))
    FolderWorkspace(tmp_path, settings).fit_q(policy, batch)
    rows = sum(len(decisions(c, Q.gamma)) for c in talks)
    assert json.loads((tmp_path / "q_health.json").read_text())["rows"] == rows


def test_a_batch_of_explored_conversations_only_is_unchanged_and_told(
    policy: PolicyRef, tmp_path: Path
) -> None:
    turns = talk(1).turns
    explored = replace(talk(1), turns=(*turns[:-1], replace(turns[-1], off_policy=True)))
    batch = RoundBatch(0, (explored,), policy)
    other = replace(policy, base_sha256="0" * 64)  # never loaded: there is nothing to ask it
    found = FolderWorkspace(tmp_path, Settings(QConfig(), ONE_STEP)).verdict(policy, other, batch)
    assert found is not None
    assert found.verdict == "unchanged"
    assert "without exploration" in found.why
