"""The frozen pass of a fitted Q serves for the reference of the KL term too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from iterpo.domain import Response, State
from iterpo.models.backbone import Backbone, load
from iterpo.models.hub import base_policy
from iterpo.models.kept_states import KeptStates, keeping
from iterpo.models.shared_prefix import shared_states
from iterpo.policy_evaluation.features import features
from iterpo.policy_improvement import _trl
from iterpo.policy_improvement.candidates import Batch
from iterpo.policy_improvement.drift import Responses, measure
from policy_improvement.runs import ONE_SGD_STEP, Run, Scores, difference, varied
from policy_improvement.tiny import MakeBackbone, write_model

HELD = replace(ONE_SGD_STEP, steps=3, beta=5.0)


def _reading(backbone: Backbone, first: int) -> Callable[..., Scores]:
    """A reward that reads the frozen policy at its first candidates, as a fitted Q does."""

    def reward(states: Sequence[State], responses: Sequence[Response]) -> Scores:
        features(backbone, states[:first], responses[:first])
        return varied(states, responses)

    return reward


@pytest.mark.parametrize(("read", "left", "multiple"), [(16, 0, 1), (12, 4, 1), (12, 4, 8)])
def test_states_that_the_reward_read_give_the_same_reference(
    make_backbone: MakeBackbone,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read: int,
    left: int,
    multiple: int,
) -> None:
    held = replace(HELD, grpo={**HELD.grpo, "pad_to_multiple_of": multiple})
    plain = Run(make_backbone(), tmp_path / "plain", held)
    free = Run(make_backbone(), tmp_path / "free", replace(held, beta=0.0))
    rows: list[int] = []
    pass_of = _trl._Trainer._get_per_token_logps_and_entropies

    def spy(self: Any, model: Any, ids: torch.Tensor, *args: Any, **options: Any) -> Any:
        if not options.get("compute_entropy"):  # the loss asks for it, the reference does not
            rows.append(len(ids))
        return pass_of(self, model, ids, *args, **options)

    monkeypatch.setattr(_trl._Trainer, "_get_per_token_logps_and_entropies", spy)
    backbone = make_backbone()
    kept = Run(backbone, tmp_path / "kept", held, _reading(backbone, read))
    assert rows == ([left] * 3 if left else [])
    assert plain.rows[3]["kl"] > 1e-3
    assert kept.rows[3]["kl"] == pytest.approx(plain.rows[3]["kl"], rel=1e-3)
    assert difference(plain.weights(), free.weights()) > 1e-3
    assert difference(plain.weights(), kept.weights()) < 1e-5  # fp32, another order of sums


def test_states_that_kl_was_measured_at_serve_for_the_reference_too(
    make_backbone: MakeBackbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[list[bool]] = []
    kept = Batch.kept

    def spy(self: Batch, *args: Any) -> Any:
        found = kept(self, *args)
        taken.append(found[0].tolist())
        return found

    monkeypatch.setattr(Batch, "kept", spy)
    config = replace(HELD, kl_share=0.5)
    measured = Run(make_backbone(), tmp_path / "measured", config)
    assert taken == [[True] * 8 + [False] * 8] * 3  # of two of the four states
    unmeasured = Run(make_backbone(), tmp_path / "unmeasured", replace(config, kl_share=0.0))
    assert taken[3:] == [[False] * 16] * 3
    assert difference(measured.weights(), unmeasured.weights()) < 1e-6


def test_kl_is_the_same_with_states_that_were_kept(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    """With those of other weights it is not, so they are read."""
    backbone = make_backbone()
    model = Run(backbone, tmp_path, replace(HELD, beta=0.0)).result.model
    ids = torch.tensor([[2, 9, 1, 4, 9, 10], [2, 9, 1, 4, 12, 1]])
    mask = torch.tensor([[1] * 6, [1] * 5 + [0]])

    def kl(known: KeptStates | None) -> float:
        return measure(
            backbone,
            model,
            Responses(ids, mask, 2),
            temperature=1.0,
            size=1,
            shared=True,
            autocast=nullcontext,
            known=known,
        ).per_response

    known = KeptStates(backbone)
    fresh = kl(None)
    assert kl(known) == fresh
    assert {key: len(states) for key, states in known.found.items()} == {
        ((2, 9, 1, 4), (9, 10)): 2,
        ((2, 9, 1, 4), (12,)): 1,
    }
    assert kl(known) == fresh > 1e-4
    for key in known.found:
        known.found[key] = torch.zeros_like(known.found[key])
    assert kl(known) != fresh


@pytest.mark.parametrize("reason", ["inexact", "checkpointing"])
def test_states_are_not_taken_where_sharing_was_not_found_exact(
    make_backbone: MakeBackbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    read: list[int] = []
    taken = Batch.kept

    def spy(self: Batch, *args: Any) -> Any:
        found = taken(self, *args)
        read.append(int(found[0].sum()))
        return found

    monkeypatch.setattr(Batch, "kept", spy)
    config = HELD
    if reason == "inexact":
        monkeypatch.setattr(_trl, "agree", lambda *_: False)
    else:
        config = replace(HELD, grpo={**HELD.grpo, "activation_checkpointing": True})
    backbone = make_backbone()
    Run(backbone, tmp_path, config, _reading(backbone, 16))
    assert read == [0] * 3


@pytest.mark.parametrize(
    ("beta", "target", "found"), [(0.0, None, 0), (0.0, 2.0, 16), (5.0, None, 16)]
)
def test_states_live_from_the_reward_to_the_reference_that_needs_them(
    make_backbone: MakeBackbone,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    beta: float,
    target: float | None,
    found: int,
) -> None:
    rewarded: list[int] = []
    trained: list[int] = []
    generate, loss = _trl._Trainer._calculate_rewards, _trl._Trainer._compute_loss

    def after_reward(self: Any, *args: Any) -> Any:
        rewards = generate(self, *args)
        known, _ = self._batch.kept(self.job, self._kept, 6)
        rewarded.append(int(known.sum()))
        return rewards

    def at_loss(self: Any, model: Any, inputs: Any) -> Any:
        trained.append(len(self._kept.found))
        return loss(self, model, inputs)

    monkeypatch.setattr(_trl._Trainer, "_calculate_rewards", after_reward)
    monkeypatch.setattr(_trl._Trainer, "_compute_loss", at_loss)
    backbone = make_backbone()
    config = replace(HELD, beta=beta, kl_target=target)
    Run(backbone, tmp_path, config, _reading(backbone, 16))
    assert rewarded == [found] * 3
    assert trained
    assert not any(trained)


def test_only_what_the_asked_policy_itself_computed_in_float32_is_kept(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    write_model(tmp_path / "bf16", torch.bfloat16)
    policy, narrow = make_backbone(), load(base_policy(str(tmp_path / "bf16")), dtype="bfloat16")

    def kept(asked: Backbone, reader: Backbone) -> list[Any]:
        with keeping(asked) as states:
            shared_states(reader, [[5, 6]], [0, 0], [[7], [8, 9]])
        return sorted(states.found)

    assert kept(policy, policy) == [((5, 6), (7,)), ((5, 6), (8, 9))]
    assert kept(policy, replace(policy)) == []  # it may have a critic's adapter
    assert kept(narrow, narrow) == []
    with keeping(policy) as states:
        pass
    shared_states(policy, [[5, 6]], [0], [[7]])
    assert states.found == {}
