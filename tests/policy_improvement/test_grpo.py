from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from iterpo.domain import Response, Sampling, State
from iterpo.errors import BatchError, ConfigError, ContextOverflowError, ResumeError, TrainingError
from iterpo.models.backbone import Backbone, load
from iterpo.models.checkpoints import save_policy
from iterpo.models.generation import generate
from iterpo.policy_improvement import _trl, shared_prompt
from iterpo.policy_improvement.single_turn import plan_steps, visiting_order
from policy_improvement.runs import (
    BASE,
    ONE_SGD_STEP,
    STATES,
    Run,
    Scores,
    Stopped,
    difference,
    share_of_w7,
    stops_at,
    tied,
    varied,
    weights,
)
from policy_improvement.tiny import MakeBackbone, state, write_model


def test_a_rewarded_token_becomes_more_probable(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    config = replace(BASE, steps=25, group_size=8, learning_rate=2e-2)
    backbone = make_backbone()
    run = Run(backbone, tmp_path, config, share_of_w7)
    first, last = run.rows[1]["reward"], run.rows[25]["reward"]
    assert last > first + 0.3
    prompts = [backbone.chat.prompt_ids(s.messages) for s in STATES]
    drawn = generate(
        replace(backbone, model=run.result.model), prompts, BASE.sampling, range(len(prompts))
    )
    assert sum(g.token_ids.count(5 + 7) for g in drawn) / len(drawn) > 6 * (first + 0.2)


def test_a_reward_without_meaning_teaches_nothing(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    """The twin of the test above: the same run with scores that ignore the response."""
    config = replace(BASE, steps=25, group_size=8, learning_rate=2e-2)

    def noise(states: Sequence[State], responses: Sequence[Response]) -> Scores:
        return [(i * 37 % 11) / 11 for i in range(len(responses))]

    run = Run(make_backbone(), tmp_path, config, noise)
    said = [g.token_ids.count(5 + 7) for g in _draw(make_backbone(), run)]
    assert sum(said) / len(said) < 1.5


def _draw(backbone: Backbone, run: Run) -> Any:
    prompts = [backbone.chat.prompt_ids(s.messages) for s in STATES]
    return generate(
        replace(backbone, model=run.result.model), prompts, BASE.sampling, range(len(prompts))
    )


def test_every_step_is_recorded_and_told(make_backbone: MakeBackbone, tmp_path: Path) -> None:
    run = Run(make_backbone(), tmp_path, replace(BASE, beta=0.1))
    assert run.ticks == [(1, 2), (2, 2)]
    assert set(run.rows) == {1, 2}
    expected = {
        "alarms",
        "box_rate",
        "clipped_ratio",
        "completion_tokens",
        "drift_alarms",
        "entropy",
        "frac_tied_groups",
        "frac_unscored",
        "grad_norm",
        "kl",
        "kl_response",
        "learning_rate",
        "loss",
        "ratio_clipped",
        "repeated_ngrams",
        "reward",
        "reward_std",
    }
    assert set(run.rows[1]) == expected
    assert run.rows[1]["learning_rate"] == 1e-2
    assert run.result.steps == 2
    assert run.result.counts["responses"] == 32
    assert set(run.result.seconds) == {"sampling", "reward", "drift", "total"}


def test_the_same_inputs_give_the_same_bytes(make_backbone: MakeBackbone, tmp_path: Path) -> None:
    first = Run(make_backbone(), tmp_path / "a")
    torch.rand(100)  # the state of the global generator must not matter
    second = Run(make_backbone(), tmp_path / "b")
    assert first.bytes() == second.bytes()
    assert first.rows == second.rows
    other = Run(make_backbone(), tmp_path / "c", replace(BASE, seed=1))
    assert other.bytes() != first.bytes()


def test_pain_01_sampled_ids_reach_reward_and_loss_unchanged(
    make_backbone: MakeBackbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: set[tuple[int, ...]] = set()
    trained: set[tuple[int, ...]] = set()
    prompts: set[tuple[int, ...]] = set()
    original = _trl._Trainer._compute_loss

    def spy(self: Any, model: Any, inputs: Any) -> Any:
        for kind, into in (("completion", trained), ("prompt", prompts)):
            for ids, mask in zip(inputs[f"{kind}_ids"], inputs[f"{kind}_mask"], strict=True):
                into.add(tuple(ids[mask.bool()].tolist()))
        return original(self, model, inputs)

    def reward(states: Sequence[State], responses: Sequence[Response]) -> Scores:
        scored.update(r.token_ids or () for r in responses)
        return varied(states, responses)

    monkeypatch.setattr(_trl._Trainer, "_compute_loss", spy)
    backbone = make_backbone()
    # A message whose ids are not those that its text would get: they come through as they are.
    ids = (9, 0, 9, 8, 1)
    text = backbone.chat.decode(ids)
    assert tuple(backbone.chat.response_ids(text)) != ids
    odd = replace(
        STATES[0],
        messages=(
            *state(0, turns=2).messages[:2],
            replace(state(0, turns=2).messages[2], content=text, token_ids=ids),
            state(0, turns=2).messages[3],
        ),
    )
    Run(backbone, tmp_path, replace(BASE, micro_batch=4), reward, [odd, *STATES[1:4]])
    assert scored == trained
    assert tuple(backbone.chat.prompt_ids(odd.messages)) in prompts
    assert any(p[i : i + 5] == ids for p in prompts for i in range(len(p)))


def test_pain_13_cut_responses_raise_the_alarm(
    make_backbone: MakeBackbone, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(BASE, clipped_ratio_alarm=0.5, sampling=Sampling(max_new_tokens=2))
    with caplog.at_level(logging.WARNING, "iterpo"):
        run = Run(make_backbone(), tmp_path, config)
    assert run.rows[1]["clipped_ratio"] > 0.5
    assert run.rows[1]["alarms"] == 1
    assert "cut at max_new_tokens" in caplog.text


def test_pain_13_rewards_without_spread_raise_the_alarm(
    make_backbone: MakeBackbone, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(BASE, steps=3, flat_steps_alarm=2)
    with caplog.at_level(logging.WARNING, "iterpo"):
        run = Run(make_backbone(), tmp_path, config, tied)
    assert [run.rows[s]["alarms"] for s in (1, 2, 3)] == [0, 1, 1]
    assert "nothing is learned" in caplog.text


def test_pain_14_one_flag_takes_cut_responses_out_of_group_and_loss(
    make_backbone: MakeBackbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut responses get a huge score: with the flag on, nobody may feel it."""
    seen: list[Any] = []
    original = _trl._Trainer._compute_loss

    def spy(self: Any, model: Any, inputs: Any) -> Any:
        seen.append(inputs)
        return original(self, model, inputs)

    def reward(states: Sequence[State], responses: Sequence[Response]) -> Scores:
        return [
            v if (r.token_ids or ())[-1] == 1 else 1000.0
            for v, r in zip(varied(states, responses), responses, strict=True)
        ]

    monkeypatch.setattr(_trl._Trainer, "_compute_loss", spy)
    config = replace(BASE, steps=1, sampling=Sampling(max_new_tokens=12))
    config = replace(config, grpo={"scale_rewards": "none"})
    Run(make_backbone(), tmp_path / "off", config, reward)
    off = seen.pop()
    config = replace(config, grpo={**config.grpo, "mask_truncated_completions": True})
    run = Run(make_backbone(), tmp_path / "on", config, reward)
    on = seen.pop()
    assert 0 < run.rows[1]["clipped_ratio"] < 1
    assert off["advantages"].abs().max() > 100
    assert on["advantages"].abs().max() < 1
    in_loss = on["tool_mask"] * on["completion_mask"]
    cut = in_loss.sum(1) == 0
    assert cut.float().mean() == run.rows[1]["clipped_ratio"]
    assert (on["advantages"][cut] == 0).all()
    assert on["num_items_in_batch"] == in_loss.sum()


def test_pain_32_the_fraction_of_tied_groups_is_reported(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    def half(states: Sequence[State], responses: Sequence[Response]) -> Scores:
        scores = varied(states, responses)
        return [0.4 + 1e-9 * i if i < 8 else s for i, s in enumerate(scores)]

    run = Run(make_backbone(), tmp_path, reward=half)
    assert run.rows[1]["frac_tied_groups"] == 0.5
    assert run.result.counts["tied_groups"] == 4


def test_pain_33_a_tied_group_has_no_gradient_also_with_a_kl_term(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    calls: list[int] = []

    def later(ties: int) -> Callable[..., Scores]:
        """Real scores first, so that policy and reference differ; then so many tied groups."""
        calls.clear()

        def reward(states: Sequence[State], responses: Sequence[Response]) -> Scores:
            calls.append(1)
            scores = varied(states, responses)
            return scores if len(calls) == 1 else [0.4] * 4 * ties + scores[4 * ties :]

        return reward

    config = replace(BASE, beta=5.0)
    all_tied = Run(make_backbone(), tmp_path / "all", config, later(4))
    assert all_tied.rows[2]["grad_norm"] == 0
    one_free = Run(make_backbone(), tmp_path / "one", config, later(3))
    assert one_free.rows[2]["grad_norm"] > 0.01
    assert one_free.rows[2]["kl"] > 1e-5


@pytest.mark.parametrize(
    ("loss", "missing"), [("dapo", None), ("grpo", math.nan), ("dr_grpo", None)]
)
def test_pain_34_a_missing_score_leaves_gradients_those_of_the_smaller_group(
    make_backbone: MakeBackbone, tmp_path: Path, loss: str, missing: float | None
) -> None:
    """Seeds go by sample number, so a group of 3 holds the first 3 samples of a group of 4."""

    def but_the_last(states: Sequence[State], responses: Sequence[Response]) -> Scores:
        scores = varied(states, responses)
        return [missing if i % 4 == 3 else s for i, s in enumerate(scores)]

    config = replace(ONE_SGD_STEP, grpo={**ONE_SGD_STEP.grpo, "loss_type": loss})
    four = Run(make_backbone(), tmp_path / "4", config, but_the_last)
    three = Run(make_backbone(), tmp_path / "3", replace(config, group_size=3))
    start = Run(make_backbone(), tmp_path / "0", config, tied).weights()
    assert four.result.counts["unscored"] == 4
    assert four.rows[1]["frac_unscored"] == 0.25
    assert difference(three.weights(), start) > 1e-3
    assert difference(four.weights(), three.weights()) < 1e-6


def test_a_reward_that_never_scores_is_an_error(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match="None or NaN for every response"):
        Run(make_backbone(), tmp_path, replace(BASE, steps=9), lambda s, r: [None] * len(r))


def test_a_reward_of_the_wrong_length_is_an_error(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match="3 scores for 16 responses"):
        Run(make_backbone(), tmp_path, reward=lambda s, r: [0.0] * 3)


@pytest.mark.parametrize("given", [0.5, None, ["good"] * 16, [[0.1, 0.2]] * 16])
def test_a_reward_that_is_no_number_per_response_is_told_as_given(
    make_backbone: MakeBackbone, tmp_path: Path, given: Any
) -> None:
    with pytest.raises(TrainingError, match=r"the reward returned .* a number per response"):
        Run(make_backbone(), tmp_path, reward=lambda s, r: given)


def test_bad_inputs_fail_before_the_first_sample(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    def never(states: Sequence[State], responses: Sequence[Response]) -> Scores:
        raise AssertionError("sampled")

    backbone = make_backbone()
    with pytest.raises(BatchError, match="no states"):
        Run(backbone, tmp_path, reward=never, states=[])
    with pytest.raises(ConfigError, match="group_size is 1"):
        Run(backbone, tmp_path, replace(BASE, group_size=1), never)
    with pytest.raises(ConfigError, match="epsilon_hgih"):
        Run(backbone, tmp_path, replace(BASE, grpo={"epsilon_hgih": 1}), never)
    with pytest.raises(ContextOverflowError, match="drop_old_turns"):
        Run(backbone, tmp_path, reward=never, states=[state(0, words=20, turns=9)])


def test_pain_12_sampler_and_reward_see_the_same_shortened_prompt(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    long = state(3, words=10, turns=9)
    seen: set[int] = set()

    def reward(states: Sequence[State], responses: Sequence[Response]) -> Scores:
        seen.update(len(s.messages) for s in states if s.conversation_id == "c3")
        return varied(states, responses)

    config = replace(BASE, drop_old_turns=True)
    run = Run(make_backbone(), tmp_path, config, reward, [*STATES[:3], long])
    assert run.result.counts["shortened_prompts"] == 1
    assert len(seen) == 1
    assert seen.pop() < len(long.messages)


@pytest.mark.parametrize(("prompts", "group", "micro"), [(7, 5, 4), (3, 2, 1), (1, 3, 32)])
def test_pain_38_any_number_of_prompts_is_valid(
    make_backbone: MakeBackbone, tmp_path: Path, prompts: int, group: int, micro: int
) -> None:
    config = replace(BASE, prompts_per_step=prompts, group_size=group, micro_batch=micro, steps=1)
    assert Run(make_backbone(), tmp_path, config).result.counts["responses"] == prompts * group


@pytest.mark.parametrize("loss", ["dapo", "grpo"])
def test_pain_39_the_micro_batch_does_not_change_the_gradient(
    make_backbone: MakeBackbone, tmp_path: Path, loss: str
) -> None:
    config = replace(
        ONE_SGD_STEP, beta=0.5, grpo={**ONE_SGD_STEP.grpo, "loss_type": loss}, micro_batch=16
    )
    whole = Run(make_backbone(), tmp_path / "16", config)
    single = Run(make_backbone(), tmp_path / "1", replace(config, micro_batch=1))
    start = Run(make_backbone(), tmp_path / "0", config, tied).weights()
    lengths = whole.rows[1]["completion_tokens"]
    assert lengths != int(lengths)  # unequal lengths, or the test would say nothing
    assert difference(whole.weights(), start) > 1e-3
    assert difference(whole.weights(), single.weights()) < 1e-5
    assert whole.rows[1]["grad_norm"] == pytest.approx(single.rows[1]["grad_norm"], rel=1e-4)


def test_pain_41_log_probs_are_those_of_sampling_at_its_temperature(
    make_backbone: MakeBackbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gaps: list[float] = []
    original = _trl._Trainer._get_per_token_logps_and_entropies
    inputs_of: list[Any] = []

    def spy(self: Any, *args: Any, **kwargs: Any) -> Any:
        out = original(self, *args, **kwargs)
        if inputs_of and kwargs.get("compute_entropy"):
            inputs = inputs_of.pop()
            gap = (out[0] - inputs["sampling_per_token_logps"]) * inputs["completion_mask"]
            gaps.append(float(gap.detach().abs().max()))
            old = inputs.get("old_per_token_logps")
            if old is not None and self.state.global_step == 0:
                ratio = ((out[0] - old) * inputs["completion_mask"]).exp()
                assert float((ratio - 1).detach().abs().max()) < 1e-5
        return out

    def loss(self: Any, model: Any, inputs: Any) -> Any:
        inputs_of.append(inputs)
        return compute(self, model, inputs)

    compute = _trl._Trainer._compute_loss
    monkeypatch.setattr(_trl._Trainer, "_get_per_token_logps_and_entropies", spy)
    monkeypatch.setattr(_trl._Trainer, "_compute_loss", loss)
    config = replace(BASE, sampling=Sampling(temperature=0.7, max_new_tokens=6))
    config = replace(config, grpo={"num_iterations": 2}, steps=2)
    run = Run(make_backbone(), tmp_path, config)
    assert gaps[0] < 1e-4  # fp32, other batch shapes
    assert gaps[1] > 1e-3  # the second update of the same samples: the policy has moved
    assert run.result.counts["responses"] == 16


def test_sharing_a_prompt_changes_no_log_prob_and_no_gradient(
    make_backbone: MakeBackbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(ONE_SGD_STEP, beta=0.5)
    shared = Run(make_backbone(), tmp_path / "shared", config)
    start = Run(make_backbone(), tmp_path / "start", config, tied).weights()
    calls: list[int] = []

    def never(*_: Any) -> bool:
        calls.append(1)
        return False

    monkeypatch.setattr(_trl, "can_share", never)
    plain = Run(make_backbone(), tmp_path / "plain", config)
    assert calls
    assert difference(shared.weights(), start) > 1e-3
    assert difference(shared.weights(), plain.weights()) < 1e-5  # fp32, another order of sums
    assert shared.rows[1]["entropy"] == pytest.approx(plain.rows[1]["entropy"], rel=1e-5)


def test_a_prompt_that_begins_with_the_padding_token_is_another_than_the_padded_one(
    make_backbone: MakeBackbone,
) -> None:
    decoder = make_backbone().model.get_decoder()
    ids = torch.tensor([[1, 5, 9, 20, 21], [1, 5, 9, 20, 22], [1, 5, 9, 20, 21]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 1], [0, 1, 1, 1, 1]])
    with torch.no_grad():
        states = shared_prompt.response_states(decoder, ids, mask, 2)
        whole = decoder(input_ids=ids[:1]).last_hidden_state
        short = decoder(input_ids=ids[1:, 1:]).last_hidden_state
    assert float((whole[0, 2] - short[0, 1]).abs().max()) > 1e-3
    torch.testing.assert_close(states[:1], whole[:, 2:4], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(states[1:], short[:, 1:3], rtol=1e-4, atol=1e-5)


def test_a_model_that_sharing_does_not_fit_is_trained_without_it(
    make_backbone: MakeBackbone,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    right = Run(make_backbone(), tmp_path / "right", ONE_SGD_STEP)
    states = shared_prompt.response_states
    monkeypatch.setattr(
        shared_prompt, "response_states", lambda *args: states(*args).roll(1, dims=1)
    )
    with caplog.at_level(logging.WARNING, "iterpo"):
        wrong = Run(make_backbone(), tmp_path / "wrong", ONE_SGD_STEP)
    assert "sharing a prompt" in caplog.text
    assert difference(right.weights(), wrong.weights()) < 1e-5


def test_pain_50_fewer_steps_than_planned_are_an_error(
    make_backbone: MakeBackbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: Any, args: Any, state: Any, control: Any, **_: Any) -> Any:
        control.should_training_stop = True
        return control

    monkeypatch.setattr(_trl.Reporter, "on_step_end", stop)
    with pytest.raises(TrainingError, match="1 of 2 planned steps"):
        Run(make_backbone(), tmp_path)


def test_pain_51_the_reference_is_the_policy_that_collected_the_batch(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    """Round 1: KL to round 0's adapter starts at exactly zero, though the base is far away."""
    backbone = make_backbone()
    first = Run(backbone, tmp_path / "0", replace(BASE, beta=0.1, steps=6))
    assert first.rows[1]["kl"] == 0
    assert first.rows[6]["kl"] > 1e-3
    folder = tmp_path / "policy"
    ref = save_policy(folder, first.result.model, "default", parent=backbone.policy, round=1)
    again = load(ref, dtype="float32", device="cpu")
    before = weights(again.model, "policy")
    second = Run(again, tmp_path / "1", replace(BASE, beta=0.1, steps=6))
    assert second.rows[1]["kl"] == pytest.approx(0, abs=1e-9)
    assert second.rows[6]["kl"] > 1e-3
    assert difference(before, weights(again.model, "policy")) == 0
    started_from = {n.replace(".policy.", ".default."): w for n, w in before.items()}
    assert difference(started_from, second.weights()) > 1e-3


@pytest.mark.parametrize(("every", "beta"), [(0, 0.1), (1, 0.0), (2, 0.1)])
def test_pain_49_an_interrupted_run_ends_with_the_same_bytes(
    make_backbone: MakeBackbone, tmp_path: Path, beta: float, every: int
) -> None:
    config = replace(BASE, steps=4, beta=beta, checkpoint_every=every, micro_batch=8)
    whole = Run(make_backbone(), tmp_path / "whole", config)
    with pytest.raises(Stopped):
        Run(make_backbone(), tmp_path / "cut", config, stops_at(4))
    resumed = Run(make_backbone(), tmp_path / "cut", config)
    assert sorted(resumed.rows) == {0: [1, 2, 3, 4], 1: [4], 2: [3, 4]}[every]
    assert resumed.bytes() == whole.bytes()
    assert {**whole.rows, **resumed.rows} == whole.rows
    assert resumed.result.counts == whole.result.counts


def test_pain_50_resuming_finished_work_gives_the_finished_policy(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    config = replace(BASE, checkpoint_every=1)
    whole = Run(make_backbone(), tmp_path, config)
    again = Run(make_backbone(), tmp_path, config)
    assert again.rows == {}
    assert again.bytes() == whole.bytes()
    assert again.result.steps == 2


def test_a_torn_checkpoint_is_not_resumed_from(make_backbone: MakeBackbone, tmp_path: Path) -> None:
    config = replace(BASE, steps=4, checkpoint_every=2)
    whole = Run(make_backbone(), tmp_path / "whole", config)
    with pytest.raises(Stopped):
        Run(make_backbone(), tmp_path / "cut", config, stops_at(4))
    (torn,) = (tmp_path / "cut").glob("checkpoint-*")
    file = next(torn.rglob("adapter_model.safetensors"))
    file.write_bytes(file.read_bytes()[:-1])
    resumed = Run(make_backbone(), tmp_path / "cut", config)
    assert sorted(resumed.rows) == [1, 2, 3, 4]
    assert resumed.bytes() == whole.bytes()


def test_a_checkpoint_of_other_inputs_is_refused(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    Run(make_backbone(), tmp_path, replace(BASE, checkpoint_every=1))
    for other in (replace(BASE, learning_rate=2e-2), replace(BASE, seed=2)):
        with pytest.raises(ResumeError, match="another policy, batch or settings"):
            Run(make_backbone(), tmp_path, other)
    with pytest.raises(ResumeError):
        Run(make_backbone(), tmp_path, states=STATES[:5])


def test_a_checkpoint_of_another_reward_is_refused_where_rewards_have_names(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    class Named:
        def __init__(self, name: str) -> None:
            self.id = name

        def __call__(self, states: Sequence[State], responses: Sequence[Response]) -> list[float]:
            return [float(len(r.text)) for r in responses]

    config = replace(BASE, checkpoint_every=1)
    Run(make_backbone(), tmp_path, config, Named("q-1"))
    Run(make_backbone(), tmp_path, config, Named("q-1"))
    with pytest.raises(ResumeError):
        Run(make_backbone(), tmp_path, config, Named("q-2"))


def test_checkpointing_activations_changes_no_gradient(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    """What is computed again in the backward pass must be what was computed forward."""
    config = replace(ONE_SGD_STEP, beta=0.5)
    plain = Run(make_backbone(), tmp_path / "plain", config)
    start = Run(make_backbone(), tmp_path / "start", config, tied).weights()
    again = replace(config, grpo={**config.grpo, "activation_checkpointing": True})
    checkpointed = Run(make_backbone(), tmp_path / "checkpointed", again)
    assert difference(plain.weights(), start) > 1e-3
    assert difference(plain.weights(), checkpointed.weights()) < 1e-5  # fp32, order of sums


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_model_comes_back_as_it_was_lent(
    make_backbone: MakeBackbone, tmp_path: Path, checkpointing: bool
) -> None:
    config = replace(BASE, beta=0.1, grpo={"activation_checkpointing": checkpointing})
    backbone = make_backbone()
    model = Run(backbone, tmp_path, config).result.model
    for module in model.modules():
        assert "forward" not in module.__dict__
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not getattr(module, "gradient_checkpointing", False)
    assert model.config._attn_implementation == "sdpa"
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    assert list(model.peft_config) == ["default"]


def test_bfloat16_weights_train_with_a_float32_adapter(tmp_path: Path) -> None:
    from iterpo.models.hub import base_policy

    write_model(tmp_path / "bf16", torch.bfloat16)
    backbone = load(base_policy(str(tmp_path / "bf16")), dtype="bfloat16", device="cpu")
    run = Run(backbone, tmp_path / "work", replace(BASE, beta=0.1))
    assert {w.dtype for w in run.weights().values()} == {torch.float32}
    assert math.isfinite(run.rows[2]["loss"])
    fp32 = tmp_path / "fp32"
    write_model(fp32)
    Run(load(base_policy(str(fp32)), dtype="float32", device="cpu"), tmp_path / "work2")


def test_one_epoch_visits_every_state_and_batches_are_full() -> None:
    config = replace(BASE, steps=None, prompts_per_step=3)
    assert plan_steps(config, 8) == 3
    assert plan_steps(replace(config, epochs=2), 8) == 6
    assert plan_steps(replace(config, prompts_per_step=16), 8) == 1
    assert plan_steps(replace(config, grpo={"num_iterations": 2}), 8) == 6
    order = visiting_order(8, 3, 3, seed=5)
    assert {i for batch in order for i in batch} == set(range(8))
    assert all(len(set(batch)) == 3 for batch in order)
    assert visiting_order(8, 3, 3, seed=6) != order
    assert visiting_order(2, 16, 1, seed=6) in ([[0, 1]], [[1, 0]])
