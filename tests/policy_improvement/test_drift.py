"""Monitors of a step, and the alarms on them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
import torch

from iterpo.domain import Message, Response, Sampling, State
from iterpo.models.backbone import frozen
from iterpo.policy_improvement import drift
from iterpo.policy_improvement.drift import Responses, measure
from iterpo.policy_improvement.monitors import boxes, miscopied, repeated_share, text_monitors
from iterpo.policy_improvement.watch import DriftLimits, Watch
from policy_improvement.runs import BASE, Run, Scores, share_of_w7
from policy_improvement.tiny import MakeBackbone

BOX = "\\boxed{"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("no box", []),
        (BOX + "AGREED: $5}", [BOX + "AGREED: $5}"]),
        (BOX + "a {b} c}", [BOX + "a {b} c}"]),
        (BOX + "cut", []),
        (BOX + BOX + "5}", [BOX + "5}"]),
        (BOX + "1} and " + BOX + "2}", [BOX + "1}", BOX + "2}"]),
        ("\\boxed {3}", ["\\boxed {3}"]),
        ("boxed{3}", []),
    ],
    ids=["none", "one", "nested", "unclosed", "unclosed-then-closed", "two", "space", "no-slash"],
)
def test_only_complete_boxes_count(text: str, found: list[str]) -> None:
    assert [text[a:b] for a, b in boxes(text)] == found


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("I offer 60. " + BOX + "60}", False),
        ("I offer 5,000. " + BOX + "5000}", False),
        ("I accept. " + BOX + "ACCEPT: 100}", False),
        ("I keep 5000. " + BOX + "500}", True),
        ("I keep 60. " + BOX + "60, 41}", True),
        ("Nothing said. " + BOX + "7}" + " said after: 7", False),
        (BOX + "ACCEPT}", None),
        ("500", None),
    ],
    ids=["said", "comma", "prompt", "lost-a-zero", "one-of-two", "after", "no-number", "no-box"],
)
def test_a_number_in_a_box_must_come_from_somewhere(text: str, wrong: bool | None) -> None:
    assert miscopied(text, frozenset({Decimal(100)})) is wrong


def test_monitors_are_shares_of_what_they_speak_of() -> None:
    state = State("c", "k", 1, (Message("system", "Divide $100."), Message("user", "30 for me?")))
    said = ["no", BOX + "30}", BOX + "3}", BOX + "ok}"]
    found = text_monitors([state] * 4, [Response(s, (1, 2, 1, 2, 1)) for s in said])
    assert found == {
        "repeated_ngrams": pytest.approx(1 / 3),
        "box_rate": 0.75,
        "miscopied": 0.5,
    }
    assert "miscopied" not in text_monitors([state], [Response("no")])
    assert repeated_share([]) == 0


@pytest.mark.parametrize("held", [2**25, 1])
def test_kl_is_the_exact_one_token_by_token(
    make_backbone: MakeBackbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    """Against log-probs of the whole vocabulary at every place, one sequence at a time."""
    for name in ("_HELD", "_CACHED"):
        monkeypatch.setattr(drift, name, held)
    backbone = make_backbone()
    run = Run(backbone, tmp_path, replace(BASE, steps=6), share_of_w7)
    model = run.result.model
    prompts, said = [[2, 9, 1, 4], [2, 8, 7, 6, 1, 4]], [[9, 10, 1], [12, 1]]
    ids = torch.tensor([[0, 0, 2, 9, 1, 4, 9, 10, 1], [2, 8, 7, 6, 1, 4, 12, 1, 0]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1], [1] * 8 + [0]])
    total, entropy = 0.0, 0.0
    for prompt, response in zip(prompts, said, strict=True):
        both = []
        for frozen_too in (False, True):
            with torch.no_grad(), frozen(backbone) if frozen_too else nullcontext():
                logits = model(input_ids=torch.tensor([prompt + response])).logits[0]
            both.append(torch.log_softmax(logits[len(prompt) - 1 : -1] / 0.8, -1).double())
        total += float((both[0].exp() * (both[0] - both[1])).sum())
        entropy -= float((both[0].exp() * both[0]).sum())
    for shared in (False, True):
        moved = measure(
            backbone,
            model,
            Responses(ids, mask, 3),
            temperature=0.8,
            size=2,
            shared=shared,
            autocast=nullcontext,
        )
        assert total > 0.1
        assert moved.per_response == pytest.approx(total / 2, rel=1e-4)
        assert moved.per_token == pytest.approx(total / 5, rel=1e-4)
        assert moved.entropy == pytest.approx(entropy / 5, rel=1e-4)


def test_measuring_changes_no_byte_of_the_result(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    one = Run(make_backbone(), tmp_path / "1", BASE)
    none = Run(make_backbone(), tmp_path / "0", replace(BASE, kl_share=0.0))
    every = Run(make_backbone(), tmp_path / "8", replace(BASE, kl_share=1.0))
    assert one.bytes() == none.bytes() == every.bytes()
    assert "kl_response" not in none.rows[2]
    assert none.result.drift == {}
    assert every.rows[2]["kl_response"] > 0
    assert one.rows[2]["entropy"] == none.rows[2]["entropy"]


def test_the_result_tells_the_monitors_of_the_policy_given_back(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    result = Run(make_backbone(), tmp_path, replace(BASE, kl_share=1.0)).result
    assert set(result.drift) == {
        "kl_response",
        "kl",
        "entropy",
        "completion_tokens",
        "repeated_ngrams",
        "box_rate",
    }
    assert result.drift["kl_response"] > 0


def test_pain_30_a_policy_that_repeats_itself_raises_alarms_once_each(
    make_backbone: MakeBackbone, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(BASE, steps=20, group_size=8, learning_rate=2e-2, drift=DriftLimits(kl=5.0))
    with caplog.at_level(logging.WARNING, "iterpo"):
        run = Run(make_backbone(), tmp_path, config, share_of_w7)
    for kind, words in (("kl", "KL to the round"), ("repetition", "repeated trigrams")):
        assert run.result.counts[f"drift_{kind}"] > 1
        assert caplog.text.count(words) == 1
    assert run.rows[1]["drift_alarms"] == 0
    assert run.rows[20]["drift_alarms"] >= 2
    assert "drift_boxes" not in run.result.counts


def test_a_steady_policy_raises_none(make_backbone: MakeBackbone, tmp_path: Path) -> None:
    def steady(states: Sequence[State], responses: Sequence[Response]) -> Scores:
        return [0.1 * (i % 2) for i in range(len(responses))]

    config = replace(
        BASE, steps=10, learning_rate=1e-5, sampling=Sampling(max_new_tokens=12), group_size=8
    )
    run = Run(make_backbone(), tmp_path, config, steady)
    assert sum(row["drift_alarms"] for row in run.rows.values()) == 0


FIRST = {
    "kl_response": 0.0,
    "entropy": 2.0,
    "completion_tokens": 20.0,
    "repeated_ngrams": 0.1,
    "box_rate": 0.9,
    "miscopied": 0.05,
}


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("kl_response", 11.0, "kl"),
        ("entropy", 0.4, "entropy"),
        ("completion_tokens", 41.0, "length"),
        ("completion_tokens", 9.0, "length"),
        ("repeated_ngrams", 0.4, "repetition"),
        ("box_rate", 0.6, "boxes"),
        ("miscopied", 0.3, "miscopied"),
    ],
)
def test_each_monitor_has_its_alarm(name: str, value: float, kind: str) -> None:
    watch = Watch(DriftLimits())
    assert watch.check(1, FIRST) == []
    assert watch.check(2, {**FIRST, name: value}) == [kind]
    assert watch.check(3, FIRST) == []
    assert watch.told == {kind: 1}


def test_a_monitor_that_is_missing_raises_none() -> None:
    watch = Watch(DriftLimits())
    watch.check(1, FIRST)
    assert watch.check(2, {k: v for k, v in FIRST.items() if k in ("entropy", "box_rate")}) == []


def test_limits_out_of_range_are_refused() -> None:
    found = replace(BASE, drift=DriftLimits(kl=0.0, length_factor=0.5)).mistakes()
    assert found == [
        "drift.kl: given 0.0; accepted: above 0",
        "drift.length_factor: given 0.5; accepted: 1 or more",
    ]
