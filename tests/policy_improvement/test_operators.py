"""The operators beside GRPO: their advantages by hand, their gradients taken another way."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from iterpo.domain import Response, Sampling, State, derive
from iterpo.errors import ConfigError
from iterpo.models.backbone import attach_lora
from iterpo.policy_improvement import _trl
from iterpo.policy_improvement.advantages import group_advantages, leave_one_out
from iterpo.policy_improvement.base import OPERATORS, ImproveConfig
from iterpo.policy_improvement.objectives import Scored
from iterpo.policy_improvement.ppo import Ppo
from iterpo.policy_improvement.ppo_options import PpoOptions
from iterpo.policy_improvement.ridge import Moments
from iterpo.policy_improvement.single_turn import check_grpo_fields, plan_steps
from policy_improvement.runs import (
    BASE,
    ONE_SGD_STEP,
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
from policy_improvement.tiny import MakeBackbone

NAN = math.nan
OTHERS = ("rloo", "ppo")
RLOO = replace(ONE_SGD_STEP, operator="rloo")
PPO = replace(ONE_SGD_STEP, operator="ppo", ppo=PpoOptions(updates=1))


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    seen: list[Any] = []
    original = _trl._Trainer._compute_loss

    def spy(self: Any, model: Any, inputs: Any) -> Any:
        seen.append(inputs)
        return original(self, model, inputs)

    monkeypatch.setattr(_trl._Trainer, "_compute_loss", spy)
    return seen


def moved(
    backbone: Any, seen: Sequence[Any], config: ImproveConfig, loss: Any
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Where one step of size 1 along -grad of a loss by hand ends, and where it began.

    ``loss`` is of the log-probs (n,) of each response, its row over all passes, and its states.
    """
    model = attach_lora(backbone, config.lora, derive(config.seed, "improve", "lora"))
    before = weights(model)
    logps, states = [], []
    for inputs in seen:
        names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
        for prompt, pm, said, sm in zip(*(inputs[n] for n in names), strict=True):
            ids = torch.cat([prompt[pm.bool()], said[sm.bool()]])[None]
            out = model(input_ids=ids, output_hidden_states=True)
            here = slice(int(pm.sum()) - 1, -1)
            logp = torch.log_softmax(out.logits[0, here], -1)
            logps.append(logp.gather(-1, said[sm.bool()][:, None])[:, 0])
            states.append(out.hidden_states[-1][0, here].detach())
    named = {n: p for n, p in model.named_parameters() if ".default." in n}
    grads = torch.autograd.grad(loss(logps, states), list(named.values()))
    return {n: before[n] - g for n, g in zip(named, grads, strict=True)}, before


# Advantages of RLOO


def test_the_worked_numbers_of_leaving_one_out() -> None:
    """1 against the mean 1/3 of the others, 0 against 2/3."""
    found = leave_one_out(torch.tensor([1.0, 0.0, 0.0, 1.0]), 4)
    assert found.values.tolist() == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])
    missing = leave_one_out(torch.tensor([1.0, NAN, 0.0, 1.0, 0.2, 0.2, 0.2, NAN]), 4)
    assert missing.values.tolist() == pytest.approx([0.5, 0, -1, 0.5, 0, 0, 0, 0])
    assert missing.tied.tolist() == [False, True]
    assert missing.scored.tolist() == [True, False, True, True, True, True, True, False]
    lone = leave_one_out(torch.tensor([0.7, NAN, NAN]), 3)
    assert (lone.values.tolist(), lone.tied.tolist()) == ([0, 0, 0], [True])


@given(st.lists(st.floats(-10, 10), min_size=5, max_size=5))
def test_leaving_one_out_is_the_centred_score_of_grpo_times_g_over_g_less_1(
    scores: list[float],
) -> None:
    rewards = torch.tensor(scores, dtype=torch.float64)
    centred = group_advantages(rewards, 5, scale="none").values
    assert torch.allclose(leave_one_out(rewards, 5).values, centred * 5 / 4, atol=1e-5)
    if float(rewards.max() - rewards.min()) > 1e-6:
        by_hand = [
            r - sum(o for j, o in enumerate(scores) if j != i) / 4 for i, r in enumerate(scores)
        ]
        assert leave_one_out(rewards, 5).values.tolist() == pytest.approx(by_hand, abs=1e-4)


def test_leaving_one_out_is_unbiased_where_the_groups_mean_shrinks() -> None:
    """Exactly, over all groups of three draws of a policy over three answers."""
    theta = torch.tensor([0.3, -0.5, 0.9], dtype=torch.float64, requires_grad=True)
    rewards = torch.tensor([0.0, 2.0, 5.0], dtype=torch.float64)
    p = torch.softmax(theta, 0)
    (exact,) = torch.autograd.grad((p * rewards).sum(), theta, retain_graph=True)
    scores = [torch.autograd.grad(p[k].log(), theta, retain_graph=True)[0] for k in range(3)]
    found = {"rloo": torch.zeros(3).double(), "grpo": torch.zeros(3).double()}
    for group in itertools.product(range(3), repeat=3):
        chance = math.prod(float(p[k].detach()) for k in group)
        drawn = rewards[list(group)]
        ways = {"rloo": leave_one_out(drawn, 3), "grpo": group_advantages(drawn, 3, scale="none")}
        for name, way in ways.items():
            for a, k in zip(way.values.tolist(), group, strict=True):
                found[name] += chance * a * scores[k] / 3
    assert (found["rloo"] - exact).abs().max() < 1e-6
    assert (found["grpo"] - exact * 2 / 3).abs().max() < 1e-6


# Gradients


@pytest.mark.parametrize("micro", [16, 4])
def test_the_gradient_of_rloo_is_that_of_reinforce(
    make_backbone: MakeBackbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, micro: int
) -> None:
    """-A log pi(response), mean over the responses that have a reward; lengths differ."""
    seen, given_out = watched(monkeypatch), []

    def some(states: Sequence[State], responses: Sequence[Response]) -> Scores:
        given_out.extend(
            None if n in (1, 6) else v for n, v in enumerate(varied(states, responses))
        )
        return list(given_out)

    config = replace(RLOO, micro_batch=micro)
    run = Run(make_backbone(), tmp_path, config, some)

    def reinforce(logps: list[Tensor], states: list[Tensor]) -> Tensor:
        total, count = torch.zeros(()), 0
        for n, logp in enumerate(logps):
            group = [r for r in given_out[n // 4 * 4 : n // 4 * 4 + 4] if r is not None]
            mine = given_out[n]
            if mine is None:
                continue
            total = total - (mine - (sum(group) - mine) / (len(group) - 1)) * logp.sum()
            count += 1
        assert len({len(logp) for logp in logps}) > 1
        return total / count

    by_hand, before = moved(make_backbone(), seen, config, reinforce)
    assert difference(by_hand, before) > 1e-2
    assert difference(run.weights(), by_hand) < 1e-6
    assert run.result.counts["unscored"] == 2


def test_the_first_gradient_of_ppo_is_the_policy_gradient_on_its_advantages(
    make_backbone: MakeBackbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ratios are 1, so nothing is clipped: -A log pi, mean over tokens, everything by hand."""
    seen, rewards = watched(monkeypatch), []

    def noted(states: Sequence[State], responses: Sequence[Response]) -> Scores:
        rewards.extend(varied(states, responses))
        return list(rewards)

    run = Run(make_backbone(), tmp_path, PPO, noted)

    def loss(logps: list[Tensor], states: list[Tensor]) -> Tensor:
        found = by_hand_advantages(rewards, states)
        whole = torch.cat(found)
        whole = (whole - whole.mean()) / (whole.std() + PPO.std_epsilon)
        return -(whole * torch.cat(logps)).mean()

    by_hand, before = moved(make_backbone(), seen, PPO, loss)
    assert difference(by_hand, before) > 1e-2
    assert difference(run.weights(), by_hand) < 1e-5  # V is solved from fp32 states
    assert run.rows[1]["ratio_clipped"] == 0


def by_hand_advantages(rewards: Sequence[float], states: Sequence[Tensor]) -> list[Tensor]:
    """V of a response from a least-squares fit to the other folds, then the sum of the errors."""
    out = []
    for n, own in enumerate(states):
        others = [m for m in range(len(states)) if m % 4 != n % 4]
        x = torch.cat([states[m] for m in others]).double()
        y = torch.cat([torch.full((len(states[m]),), rewards[m]) for m in others]).double()
        mean = x.mean(0)
        pull = (x - mean).square().sum() / x.shape[1]
        rows = torch.cat([x - mean, pull.sqrt() * torch.eye(x.shape[1]).double()])
        w = torch.linalg.lstsq(rows, torch.cat([y - y.mean(), torch.zeros(x.shape[1])])).solution
        v = y.mean() + (own.double() - mean) @ w
        ahead = torch.cat([v[1:], torch.tensor([rewards[n]]).double()])
        errors = ahead - v
        out.append(
            torch.stack(
                [sum(0.95**k * errors[j + k] for k in range(len(v) - j)) for j in range(len(v))]
            ).float()
        )
    return out


@pytest.mark.parametrize("config", [RLOO, PPO], ids=OTHERS)
def test_pain_39_micro_batches_and_shared_prompts_change_no_gradient(
    make_backbone: MakeBackbone, tmp_path: Path, config: ImproveConfig
) -> None:
    """Sequences that go through alone share no prompt."""
    config = replace(config, beta=0.5, entropy_bonus=0.1)
    whole = Run(make_backbone(), tmp_path / "16", config)
    single = Run(make_backbone(), tmp_path / "1", replace(config, micro_batch=1))
    assert whole.rows[1]["grad_norm"] > 1e-2
    assert difference(whole.weights(), single.weights()) < 1e-5


def test_with_rloo_kl_term_and_entropy_bonus_are_sums_over_a_response_too(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    """Against the mean over tokens that GRPO takes: the same but for the mean length."""
    config = replace(ONE_SGD_STEP, entropy_bonus=0.3)
    by_token = Run(make_backbone(), tmp_path / "grpo", config, tied)
    by_response = Run(make_backbone(), tmp_path / "rloo", replace(config, operator="rloo"), tied)
    length = by_token.rows[1]["completion_tokens"]
    assert by_response.rows[1]["grad_norm"] == pytest.approx(
        length * by_token.rows[1]["grad_norm"], rel=1e-5
    )


# PPO


def scored(rewards: list[float], lengths: list[int], width: int = 3, seed: int = 0) -> Scored:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    states = torch.randn(sum(lengths), width, generator=torch.Generator().manual_seed(seed))
    own = torch.ones(len(rewards), dtype=torch.bool)
    return Scored(torch.tensor(rewards).double(), mask.long(), own, lambda: states)


def test_advantages_by_token_with_states_that_tell_nothing() -> None:
    """V of a candidate is the mean of the other folds; the rest is a power of lambda."""
    config = ImproveConfig(operator="ppo", group_size=2, ppo=PpoOptions(whiten=False))
    batch = scored([1.0, 0.0, 0.0, 0.0], [3, 1, 1, 2])
    blank = replace(batch, states=lambda: torch.zeros(7, 3))
    found = Ppo(config).advantages(blank)
    # Fits are by token: the others of candidate 1 have 3 tokens of 1 and 3 of 0, and so on.
    values = [0.0, 3 / 6, 3 / 6, 3 / 5]
    assert found.values[0].tolist() == pytest.approx([0.95**2, 0.95, 1.0])
    assert found.values[1].tolist() == pytest.approx([-values[1], 0, 0])
    assert found.values[2].tolist() == pytest.approx([-values[2], 0, 0])
    assert found.values[3].tolist() == pytest.approx([-0.95 * values[3], -values[3], 0])
    assert found.tied.tolist() == [False, False]
    assert found.facts["explained_variance"] < 0


def test_no_reward_moves_the_value_that_it_is_compared_with() -> None:
    config = ImproveConfig(operator="ppo", group_size=4, ppo=PpoOptions(whiten=False, lam=1.0))
    rewards, lengths = [0.1, 0.9, 0.4, 0.6, 0.2, 0.8, 0.5, 0.7], [2, 1, 3, 2, 2, 1, 2, 3]
    batch = scored(rewards, lengths)
    changed = replace(batch, rewards=batch.rewards.clone())
    changed.rewards[2] += 5
    a, b = (Ppo(config).advantages(x).values for x in (batch, changed))
    gone = (b - a)[:, 0]
    assert gone[2] == pytest.approx(5)  # its own value stayed
    assert float(gone[[0, 1, 3, 4, 5, 7]].abs().min()) > 0
    assert gone[6] == pytest.approx(0)  # of the same fold


def test_the_value_head_remembers_earlier_batches_and_starts_anew() -> None:
    states = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(8, 3, dtype=torch.long)
    true = states.view(8, 3, 3).mean(1) @ torch.tensor([0.5, -0.3, 0.2])
    same = states.view(8, 3, 3).mean(1, keepdim=True).expand(8, 3, 3).reshape(24, 3)
    batch = Scored(true.double(), mask, torch.ones(8, dtype=torch.bool), lambda: same)
    config = ImproveConfig(operator="ppo", ppo=PpoOptions(value_ridge=1e-3))
    ppo = Ppo(config)
    explained = [ppo.advantages(batch).facts["explained_variance"] for _ in range(3)]
    assert explained[0] < explained[1]
    assert explained[2] > 0.99
    assert Ppo(config).advantages(batch).facts["explained_variance"] == explained[0]
    forgetful = Ppo(replace(config, ppo=replace(config.ppo, value_memory=0.0)))
    forgetful.advantages(batch)
    assert forgetful.advantages(batch).facts["explained_variance"] > explained[0]
    assert forgetful.past is not None
    assert ppo.past is not None
    assert float(forgetful.past.squares[-1, -1]) == 24
    assert float(ppo.past.squares[-1, -1]) == pytest.approx(24 * (1 + 0.9 + 0.81))


def test_a_ridge_is_solved_from_sums_and_shrinks_by_its_share_of_the_variance() -> None:
    """y = 2 x + 1 on x in {-1, 1}: variance 1, so a ridge of 1 halves the slope."""
    x = torch.tensor([[-1.0], [1.0], [-1.0], [1.0]])
    line = Moments.of(x, 2 * x[:, 0] + 1).solve(1.0)
    assert line(torch.tensor([[1.0], [0.0], [-1.0]])).tolist() == pytest.approx([2.0, 1.0, 0.0])
    two = Moments.of(x[:1], 2 * x[:1, 0] + 1) + Moments.of(x[1:], 2 * x[1:, 0] + 1)
    assert torch.equal(two.solve(0.1).weight, Moments.of(x, 2 * x[:, 0] + 1).solve(0.1).weight)
    nothing = Moments.of(x[:0], x[:0, 0]).solve(1.0)
    assert nothing(x).tolist() == [0, 0, 0, 0]


def test_missing_rewards_and_a_batch_without_spread_teach_ppo_nothing() -> None:
    config = ImproveConfig(operator="ppo", group_size=2)
    some = Ppo(config).advantages(scored([1.0, NAN, 0.0, 0.5], [2, 3, 1, 2]))
    assert some.scored.tolist() == [True, False, True, True]
    assert some.values[1].tolist() == [0, 0, 0]
    seen = some.values[torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0], [1, 1, 0]]).bool()]
    assert float(seen.mean()) == pytest.approx(0, abs=1e-6)
    assert float(seen.std()) == pytest.approx(1, abs=1e-3)
    three = Ppo(config)
    three.advantages(scored([1.0, NAN, 0.0, 0.5], [2, 3, 1, 2]))
    assert three.past is not None
    assert float(three.past.squares[-1, -1]) == 5  # the tokens that have a reward
    for flat in ([0.3] * 4, [0.3, NAN, NAN, NAN], [NAN] * 4):
        none = Ppo(config).advantages(scored(flat, [2, 3, 1, 2]))
        assert float(none.values.abs().max()) == 0
        assert none.tied.tolist() == [True, True]


def test_the_floor_holds_for_ppo_too() -> None:
    batch = scored([0.500, 0.501, 0.502, 0.501], [2, 3, 1, 2])
    low, high = (
        Ppo(ImproveConfig(operator="ppo", group_size=2, std_floor=f)).advantages(batch)
        for f in (0.0, 0.05)
    )
    assert float(low.values.abs().max()) > 1
    assert float(high.values.abs().max()) < 0.1


def test_several_updates_of_ppo_are_clipped_by_their_ratios(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    config = replace(BASE, operator="ppo", steps=4, learning_rate=3e-2)
    run = Run(make_backbone(), tmp_path / "a", config)
    assert run.result.counts["responses"] == 16  # one batch serves four updates
    assert plan_steps(replace(config, steps=None, prompts_per_step=8), 8) == 4
    clipped = [run.rows[step]["ratio_clipped"] for step in (1, 2, 3, 4)]
    assert clipped[0] == 0 < clipped[3]
    wide = replace(config, ppo=PpoOptions(clip=0.9))
    assert Run(make_backbone(), tmp_path / "b", wide).rows[4]["ratio_clipped"] < clipped[3]


def test_pain_37_one_response_per_state_is_enough_for_ppo(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    config = replace(BASE, operator="ppo", group_size=1, prompts_per_step=7, steps=4)
    run = Run(make_backbone(), tmp_path, config)
    assert run.result.counts["responses"] == 7
    assert run.rows[1]["frac_tied_groups"] == 0
    assert run.rows[1]["grad_norm"] > 1e-2


# All that every operator holds


def learning(operator: str) -> ImproveConfig:
    config = replace(BASE, operator=operator, steps=8, group_size=8, learning_rate=3e-2)
    return replace(config, steps=20, ppo=PpoOptions(updates=2)) if operator == "ppo" else config


@pytest.mark.parametrize("operator", OTHERS)
def test_a_rewarded_token_becomes_more_probable(
    make_backbone: MakeBackbone, tmp_path: Path, operator: str
) -> None:
    run = Run(make_backbone(), tmp_path, learning(operator), share_of_w7)
    assert run.rows[max(run.rows)]["reward"] > run.rows[1]["reward"] + 0.3


@pytest.mark.slow
@pytest.mark.parametrize("operator", OTHERS)
def test_a_reward_without_meaning_teaches_nothing(
    make_backbone: MakeBackbone, tmp_path: Path, operator: str
) -> None:
    """The twin of the test above: the same run with scores that ignore the response."""
    said: list[float] = []

    def noise(states: Sequence[State], responses: Sequence[Response]) -> Scores:
        said.append(sum(v or 0.0 for v in share_of_w7(states, responses)) / len(responses))
        return [(i * 37 % 11) / 11 for i in range(len(responses))]

    Run(make_backbone(), tmp_path, learning(operator), noise)
    assert said[-1] < said[0] + 0.2


@pytest.mark.parametrize("operator", OTHERS)
def test_pain_49_an_interrupted_run_ends_with_the_same_bytes(
    make_backbone: MakeBackbone, tmp_path: Path, operator: str
) -> None:
    """With everything on; PPO resumes between batches, with what its value head had learned."""
    config = replace(
        BASE,
        operator=operator,
        steps={"rloo": 3, "ppo": 4}[operator],
        prompts_per_step=2,
        kl_target=0.5,
        entropy_bonus=0.01,
        candidate_temperatures=(1.0, 1.5),
        checkpoint_every=1,
        micro_batch=8,
        ppo=PpoOptions(updates=2) if operator == "ppo" else PpoOptions(),
    )
    whole = Run(make_backbone(), tmp_path / "whole", config)
    with pytest.raises(Stopped):
        Run(make_backbone(), tmp_path / "cut", config, stops_at({"rloo": 3, "ppo": 2}[operator]))
    resumed = Run(make_backbone(), tmp_path / "cut", config)
    assert sorted(resumed.rows) == {"rloo": [3], "ppo": [3, 4]}[operator]
    assert resumed.bytes() == whole.bytes()
    assert {**whole.rows, **resumed.rows} == whole.rows
    assert resumed.result.counts == whole.result.counts


@pytest.mark.parametrize("operator", OTHERS)
def test_ties_are_left_alone_by_the_kl_term_and_told(
    make_backbone: MakeBackbone, tmp_path: Path, operator: str
) -> None:
    def later(states: Sequence[State], responses: Sequence[Response]) -> Scores:
        return tied(states, responses) if calls and calls.pop() else varied(states, responses)

    calls = [True, False]
    updates = PpoOptions(updates=1) if operator == "ppo" else PpoOptions()
    config = replace(BASE, operator=operator, steps=2, beta=5.0, ppo=updates)
    run = Run(make_backbone(), tmp_path, config, later)
    assert (run.rows[1]["frac_tied_groups"], run.rows[2]["frac_tied_groups"]) == (0, 1)
    assert run.rows[2]["kl_response"] > 0  # there is something that the term could pull at
    assert run.rows[2]["grad_norm"] == 0


@pytest.mark.parametrize("operator", OTHERS)
def test_the_guard_ends_a_phase_of_every_operator(
    make_backbone: MakeBackbone, tmp_path: Path, operator: str
) -> None:
    config = replace(BASE, operator=operator, steps=24, learning_rate=5e-2, kl_stop=0.3)
    run = Run(make_backbone(), tmp_path, config, share_of_w7)
    assert run.result.counts["kl_stopped"] == 1
    assert run.result.drift["kl_response"] <= 0.3


# Settings


def test_every_operator_is_told_with_what_it_accepts() -> None:
    assert sorted(OPERATORS) == ["grpo", "ppo", "rloo"]
    for operator in OPERATORS:
        assert ImproveConfig(operator=operator).mistakes() == []
    (mistake,) = ImproveConfig(operator="rloo", group_size=1).mistakes()
    assert "group_size is 1" in mistake
    (mistake,) = ImproveConfig(operator="ppo", group_size=1, prompts_per_step=1).mistakes()
    assert "2 candidates" in mistake
    (mistake,) = ImproveConfig(operator="rloo", ppo=PpoOptions(clip=0.3)).mistakes()
    assert "operator ppo alone" in mistake
    wrong = PpoOptions(updates=0, clip=1, lam=2, value_ridge=0, value_memory=-1)
    found = ImproveConfig(operator="ppo", ppo=wrong).mistakes()
    assert [m.partition(":")[0] for m in found] == [
        "ppo.updates",
        "ppo.clip",
        "ppo.lam",
        "ppo.value_ridge",
        "ppo.value_memory",
    ]


def test_pain_41_updates_of_ppo_are_refused_under_a_nucleus() -> None:
    nucleus = ImproveConfig(operator="ppo", sampling=Sampling(top_p=0.9))
    (mistake,) = nucleus.mistakes()
    assert "ppo.updates" in mistake
    assert replace(nucleus, ppo=PpoOptions(updates=1)).mistakes() == []


@pytest.mark.parametrize("operator", OTHERS)
@pytest.mark.parametrize("field", ["loss_type", "scale_rewards", "num_iterations", "epsilon"])
def test_what_varies_grpos_objective_is_refused_with_another(operator: str, field: str) -> None:
    given_fields = {field: 1, "weight_decay": 0.1}
    with pytest.raises(ConfigError, match=rf"grpo\.{field} varies GRPO's") as caught:
        check_grpo_fields(ImproveConfig(operator=operator, grpo=given_fields))
    assert "weight_decay" not in str(caught.value)
    assert ("ppo.clip" in str(caught.value)) == (operator == "ppo")
    check_grpo_fields(ImproveConfig(operator=operator, grpo={"weight_decay": 0.1}))


def test_a_plan_names_operators_and_stays_what_it_was(tmp_path: Path) -> None:
    from iterpo.experiments.plan import load_plan

    plain = load_plan("smoke", [])
    assert load_plan("smoke", ["improve.operator=grpo"]).identity() == plain.identity()
    rloo, ppo = (load_plan("smoke", [f"improve.operator={name}"]) for name in OTHERS)
    assert len({plain.identity(), rloo.identity(), ppo.identity()}) == 3
    clipped = load_plan("smoke", ["improve.operator=ppo", "improve.ppo.clip=0.1"])
    assert clipped.identity() != ppo.identity()
    with pytest.raises(ConfigError, match=r"improve\.ppo"):
        load_plan("smoke", ["improve.operator=ppo", "improve.ppo.epochs=2"])
    with pytest.raises(ConfigError, match="grpo, ppo, rloo"):
        load_plan("smoke", ["improve.operator=reinforce"])
