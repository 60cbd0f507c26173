"""One improvement of the tiny model with everything that it reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from iterpo.domain import Response, Sampling, State
from iterpo.models.backbone import Backbone
from iterpo.models.lora import LoraSpec
from iterpo.policy_improvement.base import ImproveConfig, ImproveResult
from iterpo.policy_improvement.single_turn import improve
from policy_improvement.tiny import state

Scores = list[float | None]

STATES = [state(i, words=1 + i % 4) for i in range(8)]
# What the tests are about is tried without a guard, which would bend every run to a distance.
BASE = ImproveConfig(
    lora=LoraSpec(r=4, alpha=8),
    sampling=Sampling(max_new_tokens=6),
    prompts_per_step=4,
    group_size=4,
    steps=2,
    learning_rate=1e-2,
    kl_target=None,
    std_floor=1e-3,
    clipped_ratio_alarm=1.0,
)
ONE_SGD_STEP = replace(
    BASE, steps=1, learning_rate=1.0, grpo={"optim": "sgd", "max_grad_norm": 0.0}
)


def share_of_w7(states: Sequence[State], responses: Sequence[Response]) -> Scores:
    return [r.text.split().count("w7") / 6 for r in responses]


def varied(states: Sequence[State], responses: Sequence[Response]) -> Scores:
    return [sum(r.token_ids or ()) % 7 / 7 for r in responses]


def tied(states: Sequence[State], responses: Sequence[Response]) -> Scores:
    return [0.4] * len(responses)


class Run:
    """One improvement with everything that it reported."""

    def __init__(
        self,
        backbone: Backbone,
        workdir: Path,
        config: ImproveConfig = BASE,
        reward: Callable[..., Any] = varied,
        states: Sequence[State] = STATES,
    ) -> None:
        self.rows: dict[int, dict[str, float]] = {}
        self.ticks: list[tuple[int, int]] = []
        self.result: ImproveResult = improve(
            backbone,
            states,
            reward,
            config,
            workdir=workdir,
            record=lambda step, metrics: self.rows.__setitem__(step, dict(metrics)),
            progress=lambda done, total, metrics: self.ticks.append((done, total)),
        )

    def weights(self) -> dict[str, torch.Tensor]:
        return weights(self.result.model)

    def bytes(self) -> bytes:
        return save(self.weights())


def weights(model: Any, adapter: str = "default") -> dict[str, torch.Tensor]:
    return {
        name: value.detach().clone()
        for name, value in model.named_parameters()
        if f".{adapter}." in name
    }


def difference(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


class Stopped(Exception):  # noqa: N818
    """Stands for a kill."""


def stops_at(step: int) -> Callable[..., Scores]:
    calls: list[int] = []

    def reward(states: Sequence[State], responses: Sequence[Response]) -> Scores:
        calls.append(1)
        if len(calls) == step:
            raise Stopped
        return varied(states, responses)

    return reward
