"""An entropy bonus and candidates at several temperatures, against gradients worked out by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from iterpo.domain import Response, Sampling, State, derive
from iterpo.errors import ConfigError
from iterpo.models.backbone import attach_lora
from iterpo.policy_improvement import _trl
from iterpo.policy_improvement.observer import Observer
from iterpo.policy_improvement.tempering import log_mixture_weights, temperatures_of, token_logps
from policy_improvement.runs import (
    BASE,
    ONE_SGD_STEP,
    STATES,
    Run,
    Scores,
    Stopped,
    difference,
    stops_at,
    tied,
    weights,
)
from policy_improvement.tiny import MakeBackbone, state


def start(backbone: Any, config: Any = BASE) -> Any:
    """The policy that training begins with."""
    return attach_lora(backbone, config.lora, derive(config.seed, "improve", "lora"))


def gradients(model: Any, value: torch.Tensor) -> dict[str, torch.Tensor]:
    named = {n: p for n, p in model.named_parameters() if ".default." in n}
    found = torch.autograd.grad(value, list(named.values()))
    return dict(zip(named, found, strict=True))


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    seen: list[Any] = []
    original = _trl._Trainer._compute_loss

    def spy(self: Any, model: Any, inputs: Any) -> Any:
        seen.append(inputs)
        return original(self, model, inputs)

    monkeypatch.setattr(_trl._Trainer, "_compute_loss", spy)
    return seen


@pytest.mark.parametrize("micro", [16, 4])
@pytest.mark.parametrize("loss", ["dapo", "grpo"])
def test_the_entropy_bonus_has_the_gradient_of_the_mean_entropy(
    make_backbone: MakeBackbone,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    micro: int,
    loss: str,
) -> None:
    """All groups are tied, so nothing else moves the policy; micro-batches differ in length."""
    seen = watched(monkeypatch)
    grpo = {**ONE_SGD_STEP.grpo, "loss_type": loss}
    config = replace(ONE_SGD_STEP, entropy_bonus=0.3, micro_batch=micro, grpo=grpo)
    run = Run(make_backbone(), tmp_path, config, tied)
    backbone = make_backbone()
    model = start(backbone)
    before = weights(model)
    entropies = []
    for inputs in seen:
        for prompt, pm, said, sm in zip(
            inputs["prompt_ids"],
            inputs["prompt_mask"],
            inputs["completion_ids"],
            inputs["completion_mask"],
            strict=True,
        ):
            ids = torch.cat([prompt[pm.bool()], said[sm.bool()]])
            logits = model(input_ids=ids[None]).logits[0, int(pm.sum()) - 1 : -1]
            logp = torch.log_softmax(logits, -1)
            entropies.append(-(logp.exp() * logp).sum(-1))
    mean = torch.cat(entropies).mean()
    by_hand = gradients(model, 0.3 * mean)
    moved = {n: w - before[n] for n, w in run.weights().items()}
    assert len(seen) == 16 // micro
    assert len({len(e) for e in entropies}) > 1
    assert max(float(g.abs().max()) for g in by_hand.values()) > 1e-3
    assert difference(moved, by_hand) < 1e-6
    assert run.rows[1]["entropy"] == pytest.approx(float(mean.detach()), rel=1e-5)
    without = Run(make_backbone(), tmp_path / "0", replace(config, entropy_bonus=0.0), tied)
    assert difference(without.weights(), before) == 0


# A policy over sequences of two tokens out of three, small enough to sum over all of them.
TEMPERATURES = (1.0, 1.0, 1.5, 2.5)
PLACES = 2


def logits_of(parameters: torch.Tensor, y: Sequence[int]) -> torch.Tensor:
    """(1, 2, 3): the second token's logits depend on the first token."""
    return torch.stack([parameters[0], parameters[1 + y[0]]])[None]


def sequences(parameters: torch.Tensor) -> list[tuple[float, float, float, torch.Tensor]]:
    """Of each sequence: its mixture probability, weight, reward and grad log pi."""
    found = []
    for i, y in enumerate(itertools.product(range(3), repeat=PLACES)):
        logits, ids = logits_of(parameters, y), torch.tensor([y])
        logps = token_logps(logits.double(), ids, TEMPERATURES)
        mask = torch.ones(1, PLACES)
        weight = log_mixture_weights(logps.detach(), mask, TEMPERATURES, 1.0).exp()
        mixture = logps.detach().sum(-1).exp().mean(0)
        (grad,) = torch.autograd.grad(logps[0].sum(), parameters)
        found.append((float(mixture), float(weight), float((i * 5) % 9), grad))
    return found


def test_the_weighted_gradient_of_a_group_is_that_of_the_policy() -> None:
    """Exactly, by summing over all groups of two, with the group's own mean subtracted."""
    parameters = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).double() * 1.5
    parameters.requires_grad_()
    every = sequences(parameters)
    assert sum(b for b, *_ in every) == pytest.approx(1)
    assert max(w for _, w, *_ in every) <= 2  # the policy's own temperature is half of them
    exact = sum((b * w * r * g for b, w, r, g in every), torch.zeros_like(parameters))
    weighted, unweighted = torch.zeros_like(parameters), torch.zeros_like(parameters)
    for (b1, w1, r1, g1), (b2, w2, r2, g2) in itertools.product(every, repeat=2):
        mean = (r1 + r2) / 2
        weighted += b1 * b2 * (w1 * (r1 - mean) * g1 + w2 * (r2 - mean) * g2) / 2
        unweighted += b1 * b2 * ((r1 - mean) * g1 + (r2 - mean) * g2) / 2
    policy = torch.autograd.grad(
        sum(
            (
                r * torch.log_softmax(logits_of(parameters, y), -1)[0, [0, 1], list(y)].sum().exp()
                for y, (_, _, r, _) in zip(
                    itertools.product(range(3), repeat=PLACES), every, strict=True
                )
            ),
            torch.zeros(()),
        ),
        parameters,
    )[0]
    assert (exact - policy).abs().max() < 1e-12
    assert (weighted - policy / 2).abs().max() < 1e-12  # 1 - 1 / G, as without temperatures
    assert (unweighted - policy / 2).abs().max() > 0.05  # the twin: what leaving it out would do


def test_temperatures_are_drawn_for_each_candidate_alone() -> None:
    names = [f"c{i}" for i in range(500)]
    drawn = temperatures_of(TEMPERATURES, names, 8, 3, 7)
    assert drawn == temperatures_of(TEMPERATURES, names, 8, 3, 7)
    assert drawn != temperatures_of(TEMPERATURES, names, 8, 4, 7)
    share = [drawn.count(t) / 4000 for t in (1.0, 1.5, 2.5)]
    assert share == pytest.approx([0.5, 0.25, 0.25], abs=0.03)
    hot = [sum(t > 1 for t in drawn[8 * i : 8 * i + 8]) for i in range(500)]
    assert len(set(hot)) > 6  # not dealt out in turn: groups differ


ONE_TOKEN = replace(
    ONE_SGD_STEP,
    sampling=Sampling(temperature=0.4, max_new_tokens=1),
    prompts_per_step=200,
    group_size=8,
    micro_batch=1600,
    candidate_temperatures=(0.4, 3.0),
    grpo={**ONE_SGD_STEP.grpo, "loss_type": "dr_grpo", "scale_rewards": "none"},
)


def test_training_on_tempered_candidates_moves_the_policy_as_its_own_would(
    make_backbone: MakeBackbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,600 single tokens through the trainer against the sum over the vocabulary."""
    same = [replace(STATES[0], conversation_id=f"c{i}") for i in range(200)]

    def by_token(states: Sequence[State], responses: Sequence[Response]) -> Scores:
        return [((r.token_ids or (0,))[0] * 7 % 25) / 25 for r in responses]

    model = start(backbone := make_backbone(), ONE_TOKEN)
    before = weights(model)
    prompt = torch.tensor([backbone.chat.prompt_ids(STATES[0].messages)])
    p = torch.softmax(model(input_ids=prompt).logits[0, -1] / 0.4, -1)
    value = sum((p[i] * (i * 7 % 25) / 25 for i in range(25)), torch.zeros(()))
    exact = torch.cat([(7 / 8 * g).flatten() for g in gradients(model, value).values()])

    def moved(folder: str) -> torch.Tensor:
        run = Run(make_backbone(), tmp_path / folder, ONE_TOKEN, by_token, same)
        return torch.cat([(w - before[n]).flatten() for n, w in run.weights().items()])

    right = moved("right")

    def ones(self: Observer, batch: Any, passes: Any) -> torch.Tensor:
        return torch.ones(len(batch.indices))

    monkeypatch.setattr(Observer, "candidate_weights", ones)
    wrong = moved("wrong")
    assert (right - exact).norm() / exact.norm() < 0.1
    assert (wrong - exact).norm() / exact.norm() > 0.3


def test_weights_come_from_the_log_probs_of_the_drawn_tokens(
    make_backbone: MakeBackbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(monkeypatch)
    rewards: list[float] = []

    def varied_noted(states: Sequence[State], responses: Sequence[Response]) -> Scores:
        rewards.extend(sum(r.token_ids or ()) % 7 / 7 for r in responses)
        return list(rewards)

    given = (1.0, 1.6)
    config = replace(BASE, steps=1, candidate_temperatures=given, grpo={"scale_rewards": "none"})
    Run(make_backbone(), tmp_path, config, varied_noted)
    (inputs,) = seen
    model = start(make_backbone())
    for row in range(16):
        pm, sm = inputs["prompt_mask"][row].bool(), inputs["completion_mask"][row].bool()
        said = inputs["completion_ids"][row][sm]
        ids = torch.cat([inputs["prompt_ids"][row][pm], said])
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0, int(pm.sum()) - 1 : -1]
        whole = [
            float(torch.log_softmax(logits / t, -1).gather(-1, said[:, None]).sum()) for t in given
        ]
        weight = math.exp(whole[0]) / (sum(map(math.exp, whole)) / 2)
        group = rewards[row // 4 * 4 : row // 4 * 4 + 4]
        advantage = rewards[row] - sum(group) / 4
        assert float(inputs["advantages"][row]) == pytest.approx(weight * advantage, abs=1e-5)
    assert 0 < int(inputs["on_policy"].sum()) < 16


def test_with_temperatures_the_kl_term_is_that_of_the_policys_own_candidates(
    make_backbone: MakeBackbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a first step with scores, tied groups but one hold no term; by hand on that one."""
    seen = watched(monkeypatch)
    config = replace(ONE_SGD_STEP, steps=2, learning_rate=0.3, candidate_temperatures=(1.0, 1.5))
    calls: list[int] = []

    def later(states: Sequence[State], responses: Sequence[Response]) -> Scores:
        calls.append(1)
        return [sum(r.token_ids or ()) % 7 / 7 for r in responses]

    free = Run(make_backbone(), tmp_path / "free", config, later)
    held = Run(make_backbone(), tmp_path / "held", replace(config, beta=2.0), later)
    assert free.rows[1]["loss"] == pytest.approx(held.rows[1]["loss"], abs=1e-6)  # KL is 0 there
    inputs = seen[3]
    own = (inputs["completion_mask"] * inputs["on_policy"].unsqueeze(1)).bool()
    gap = inputs["ref_per_token_logps"] - inputs["sampling_per_token_logps"]
    k3 = (gap.exp() - gap - 1)[own].mean()
    assert not bool(inputs.get("tool_mask", torch.ones(1)).eq(0).any())  # no tied group
    difference_of_losses = held.rows[2]["loss"] - free.rows[2]["loss"]
    assert float(k3) > 1e-3
    assert difference_of_losses == pytest.approx(2.0 * float(k3), rel=1e-3)


def test_pain_49_an_interrupted_exploring_run_ends_with_the_same_bytes(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    config = replace(
        BASE,
        steps=4,
        beta=0.1,
        entropy_bonus=0.01,
        candidate_temperatures=(1.0, 1.3, 1.6),
        checkpoint_every=1,
        micro_batch=8,
    )
    whole = Run(make_backbone(), tmp_path / "whole", config)
    with pytest.raises(Stopped):
        Run(make_backbone(), tmp_path / "cut", config, stops_at(4))
    resumed = Run(make_backbone(), tmp_path / "cut", config)
    assert resumed.bytes() == whole.bytes()
    assert {**whole.rows, **resumed.rows} == whole.rows
    assert resumed.result.counts == whole.result.counts
    plain = Run(make_backbone(), tmp_path / "plain", replace(config, candidate_temperatures=()))
    assert plain.bytes() != whole.bytes()


def test_one_temperature_alone_is_the_plain_run(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    """All candidates are then draws of the policy, with weights of 1."""
    plain = Run(make_backbone(), tmp_path / "plain", BASE)
    alone = Run(make_backbone(), tmp_path / "x", replace(BASE, candidate_temperatures=(1.0,)))
    assert difference(plain.weights(), alone.weights()) < 1e-6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidate_temperatures": (1.3, 1.6)}, "must be among them"),
        ({"candidate_temperatures": (1.0, 0.0)}, "must be > 0"),
        (
            {"candidate_temperatures": (1.0, 2.0), "sampling": Sampling(top_p=0.9)},
            "make impossible",
        ),
        ({"candidate_temperatures": (1.0, 2.0), "grpo": {"use_vllm": True}}, "can't be used"),
        ({"grpo": {"entropy_coef": 0.1}}, "decided by entropy_bonus"),
    ],
    ids=["own", "zero", "nucleus", "engine", "native"],
)
def test_what_would_bias_the_gradient_is_refused(
    make_backbone: MakeBackbone, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Run(make_backbone(), tmp_path, replace(BASE, **options), states=[state(0)])
