"""The policy is held where the guard says, on a reward that drives it away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from iterpo.domain import derive
from iterpo.errors import ConfigError
from iterpo.models.backbone import attach_lora, load
from iterpo.models.checkpoints import save_policy
from iterpo.policy_improvement.candidates import Batch
from iterpo.policy_improvement.kl_guard import KlGuard
from iterpo.policy_improvement.observer import Observer
from policy_improvement.runs import (
    BASE,
    STATES,
    Run,
    Stopped,
    difference,
    share_of_w7,
    stops_at,
    weights,
)
from policy_improvement.tiny import MakeBackbone

DRIVEN = replace(BASE, steps=20, group_size=8, kl_share=1.0)


def kl(run: Run) -> list[float]:
    return [run.rows[step]["kl_response"] for step in sorted(run.rows)]


def test_without_a_guard_the_reward_drives_the_policy_away(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    """The twin of the tests below: the same run, and the same with a fixed small weight."""
    free = Run(make_backbone(), tmp_path / "free", DRIVEN, share_of_w7)
    assert max(kl(free)) > 10
    assert free.result.drift["kl_response"] > 10
    light = Run(make_backbone(), tmp_path / "light", replace(DRIVEN, beta=0.05), share_of_w7)
    assert max(kl(light)) > 3


@pytest.mark.parametrize("target", [0.5, 1.0])
def test_a_target_holds_the_policy(
    make_backbone: MakeBackbone, tmp_path: Path, target: float
) -> None:
    config = replace(DRIVEN, kl_target=target, learning_rate=5e-3)
    run = Run(make_backbone(), tmp_path, config, share_of_w7)
    assert max(kl(run)) < 1.5 * target
    assert max(kl(run)) > 0.5 * target  # it does move
    assert run.result.drift["kl_response"] < 1.5 * target
    assert run.rows[1]["beta"] < 0.01 < run.rows[20]["beta"]
    assert run.result.steps == 20


def test_a_stop_gives_back_the_latest_policy_measured_within_it(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    run = Run(make_backbone(), tmp_path / "stop", replace(DRIVEN, kl_stop=1.0), share_of_w7)
    done = run.result.steps
    assert 0 < done < 20
    assert run.result.counts["kl_stopped"] == 1
    # Row s tells the policy before update s, so the first row beyond the limit is done + 2.
    assert sorted(run.rows) == list(range(1, done + 3))
    assert kl(run)[done] <= 1.0 < kl(run)[done + 1]


@pytest.mark.parametrize("steps", [4, 1])
def test_a_first_measurement_beyond_the_limit_gives_back_the_policy_of_the_start(
    make_backbone: MakeBackbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Candidates at several temperatures may leave a batch without one that KL is measured on."""
    observe = Observer.observe

    def spy(self: Observer, batch: Batch, step: int, *rest: Any) -> dict[str, float]:
        own = batch.own
        batch.own = torch.zeros_like(own) if step == 0 else own
        with monkeypatch.context() as without:
            without.setattr(Batch, "monitors", lambda *_: {})
            found = observe(self, batch, step, *rest)
        batch.own = own
        return found

    monkeypatch.setattr(Observer, "observe", spy)
    config = replace(DRIVEN, steps=steps, kl_stop=1e-4)
    backbone = make_backbone()
    begun = attach_lora(backbone, config.lora, derive(config.seed, "improve", "lora"))
    before = weights(begun)
    run = Run(make_backbone(), tmp_path, config, share_of_w7)
    assert "kl_response" not in run.rows[1]
    assert (run.result.steps, run.result.counts["kl_stopped"]) == (0, 1)
    assert difference(run.weights(), before) == 0


def test_the_policy_after_the_last_step_is_measured_too(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    free = Run(make_backbone(), tmp_path / "free", replace(DRIVEN, steps=5), share_of_w7)
    assert kl(free)[4] < free.result.drift["kl_response"]
    between = (max(kl(free)) + free.result.drift["kl_response"]) / 2
    config = replace(DRIVEN, steps=5, kl_stop=between)
    run = Run(make_backbone(), tmp_path / "stop", config, share_of_w7)
    assert kl(run) == kl(free)
    assert (run.result.steps, run.result.counts["kl_stopped"]) == (4, 1)
    # Steps are planned, so that the learning rate of each is the same in both.
    assert run.result.drift["kl_response"] < between
    assert difference(run.weights(), free.weights()) > 1e-3


@pytest.mark.parametrize(
    "options",
    [{"kl_target": 0.5}, {"kl_stop": 0.3}, {"kl_target": 0.1, "kl_stop": 0.11, "beta": 0.2}],
    ids=["target", "stop", "both"],
)
def test_pain_49_an_interrupted_guarded_run_ends_with_the_same_bytes(
    make_backbone: MakeBackbone, tmp_path: Path, options: dict[str, float]
) -> None:
    """Killed while the policy that goes too far draws: what it goes back to is in a checkpoint."""
    config = replace(BASE, steps=8, group_size=8, checkpoint_every=1, **options)  # type: ignore[arg-type]
    whole = Run(make_backbone(), tmp_path / "whole", config, stops_at(99))
    last = max(whole.rows)
    assert whole.result.counts["kl_stopped"] == (last < 8) == ("kl_stop" in options)
    cut = tmp_path / "cut"
    with pytest.raises(Stopped):
        Run(make_backbone(), cut, config, stops_at(last))
    resumed = Run(make_backbone(), cut, config, stops_at(99))
    again = Run(make_backbone(), cut, config, stops_at(1))  # it is finished, stopped or not
    assert sorted(resumed.rows) == [last]
    assert {**whole.rows, **resumed.rows} == whole.rows
    for run in (resumed, again):
        assert run.bytes() == whole.bytes()
        assert run.result.steps == whole.result.steps
        assert run.result.counts == whole.result.counts
        assert run.result.drift == whole.result.drift


def test_pain_51_the_guard_measures_from_the_adapter_that_collected(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    backbone = make_backbone()
    first = Run(backbone, tmp_path / "0", replace(DRIVEN, steps=6), share_of_w7)
    assert first.result.drift["kl_response"] > 0.2
    folder = tmp_path / "policy"
    ref = save_policy(folder, first.result.model, "default", parent=backbone.policy, round=1)
    again = load(ref, dtype="float32", device="cpu")
    second = Run(again, tmp_path / "1", replace(DRIVEN, steps=2, kl_stop=0.5), share_of_w7)
    assert second.rows[1]["kl_response"] == 0


def test_the_weight_grows_with_the_distance_and_is_bounded() -> None:
    guard = KlGuard(beta=0.0, target=2.0)
    weights = [guard.weight(0.1 * i) for i in range(100)]
    assert weights == sorted(weights)
    assert guard.weight(2.0) == 1.0
    assert max(weights) < 500
    assert KlGuard(beta=0.3).weight(50.0) == 0.3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kl_target": 0.0}, "kl_target: given 0.0"),
        ({"kl_target": 1.0, "kl_stop": 1.0}, "above the target"),
        ({"kl_stop": 1.0, "kl_share": 0.0}, "kl_share is 0"),
        ({"entropy_bonus": -1.0}, "entropy_bonus: given -1.0"),
    ],
)
def test_guards_that_can_not_hold_are_refused(
    make_backbone: MakeBackbone, tmp_path: Path, options: dict[str, float], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Run(make_backbone(), tmp_path, replace(BASE, **options), states=STATES)  # type: ignore[arg-type]
