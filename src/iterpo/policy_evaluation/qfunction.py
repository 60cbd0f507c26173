"""QFunction: the fitted Q as a callable reward, and its artefact on disk."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from iterpo import artifacts
from iterpo.domain import Message, Response, State
from iterpo.errors import ArtifactError, ModelError
from iterpo.models.backbone import Backbone
from iterpo.models.critic import critic_weights, load_critic
from iterpo.policy_evaluation.base import QConfig, TuneConfig
from iterpo.policy_evaluation.features import features
from iterpo.policy_evaluation.health import QHealth
from iterpo.policy_evaluation.numbers import SPREAD, columns

__all__ = ["KIND", "QFunction", "ValueHead", "backbone_facts", "stored_quantization"]

KIND = "q"
"""Artefact kind of a stored Q."""

_HEAD = "head.safetensors"
_CRITIC = "critic.safetensors"

_PROBE = (
    Message("system", "Probe 0123456789."),
    Message("user", "[note]\nHello?"),
    Message("assistant", "Yes: \\boxed{1}"),
    Message("user", "Go on."),
)


class ValueHead(nn.Module):
    """MLP d -> hidden -> 1 with ReLU and dropout in fp32, one or several side by side (Table 3).

    It learns targets of mean 0 and spread 1; the scales live in its buffers, so that returns in
    thousands converge like returns around 1 and scores come back in the unit of the returns.
    """

    feature_mean: Tensor
    feature_scale: Tensor
    return_mean: Tensor
    return_scale: Tensor
    lowest: Tensor
    highest: Tensor

    def __init__(self, width: int, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Linear(width, heads * hidden, dtype=torch.float32)
        bound = 1.0 / math.sqrt(hidden)
        self.outer = nn.Parameter(torch.empty(heads, hidden).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(heads).uniform_(-bound, bound))
        self.dropout = nn.Dropout(dropout)
        # One entry per feature, then scalars in the unit of the returns.
        self.register_buffer("feature_mean", torch.zeros(width))
        self.register_buffer("feature_scale", torch.ones(width))
        self.register_buffer("return_mean", torch.zeros(()))
        self.register_buffer("return_scale", torch.ones(()))
        self.register_buffer("lowest", torch.tensor(-math.inf))
        self.register_buffer("highest", torch.tensor(math.inf))

    def set_scales(
        self,
        features: Tensor,
        returns: Tensor,
        config: QConfig,
        weights: Tensor | None = None,
    ) -> None:
        """Take the scales from the rows that are fitted on: (n, d), (n,), and (n,) weights.

        The last columns are those of ``config.numbers``.
        """
        self.return_mean, scale = _mean_and_spread(returns, weights)
        self.return_scale = torch.where(scale > 0, scale, torch.ones(()))
        if config.standardise:
            self.standardise(*_mean_and_spread(features, weights), config.numbers)
        if config.clamp:
            returns = returns if weights is None else returns[weights > 0]
            self.lowest, self.highest = returns.min(), returns.max()

    def standardise(self, mean: Tensor, spread: Tensor, numbers: int) -> None:
        """Bring features of this mean and spread, (d,) each, to mean 0 and spread 1.

        The last of them, those of ``numbers`` figures of each message, come to ``numbers.SPREAD``.
        """
        told = columns(numbers)
        if told >= len(spread):
            raise ValueError(f"{len(spread)} features can't end with {told} columns of numbers")
        scale = torch.where(spread > 1e-6, spread, torch.ones(()))
        scale[len(scale) - told :] /= SPREAD
        self.feature_mean, self.feature_scale = mean, scale

    def normalised(self, features: Tensor) -> Tensor:
        """Scaled predictions of every head: (n, d) -> (n, heads)."""
        x = (features.float() - self.feature_mean) / self.feature_scale
        inner: Tensor = self.dropout(torch.relu(self.inner(x)))
        by_head = inner.reshape(len(x), *self.outer.shape)  # (n, heads, hidden)
        return (by_head * self.outer).sum(dim=2) + self.bias

    def forward(self, features: Tensor, pessimism: float = 0.0) -> Tensor:
        """Scores in the unit of the returns: (n, d) -> (n,).

        Mean over the heads, less ``pessimism`` standard deviations, then bounded: see ``QConfig``.
        """
        return self.unbounded(features, -pessimism).clamp(self.lowest, self.highest)

    def unbounded(self, features: Tensor, deviations: float = 0.0) -> Tensor:
        """Mean over the heads plus so many standard deviations, in returns: (n, d) -> (n,)."""
        heads = self.normalised(features)  # (n, heads)
        scaled = heads.mean(dim=1)
        if deviations != 0:
            scaled = scaled + deviations * heads.std(dim=1)
        return scaled * self.return_scale + self.return_mean


@dataclass(frozen=True, slots=True, eq=False)
class QFunction:
    """Q^pi as a ``Reward``: a frozen backbone and a head fitted to returns (Observation 3.5)."""

    backbone: Backbone = field(repr=False)
    """Weights that give the features: the frozen policy's, or a copy with a tuned adapter."""
    head: ValueHead = field(repr=False)
    """Fitted head, on the CPU, in evaluation mode."""
    config: QConfig
    """How it was fitted."""
    report: QHealth | None = field(default=None, repr=False)
    """How far to trust it; None for one that was loaded (the report is stored beside it)."""
    log_sha256: str | None = None
    """``split.log_sha256`` of the log it was fitted on, what was set aside included; None if that
    is not known."""

    @property
    def id(self) -> str:
        """Content hash of what was fitted: no checkpoint of a reward is continued with another."""
        tuned = critic_weights(self.backbone)
        fitted = save(_tensors(self.head)) + (save(tuned) if tuned else b"")
        return hashlib.sha256(fitted).hexdigest()[:16]

    def __call__(
        self, states: Sequence[State], responses: Sequence[Response]
    ) -> list[float | None]:
        """One score per (state, response), in the unit of the returns; None where none exists.

        Raises:
            ContextOverflowError: if a state and its response do not fit the backbone's context.
        """
        return self.rated(states, responses, self._rate)

    def rated(
        self,
        states: Sequence[State],
        responses: Sequence[Response],
        rate: Callable[[Tensor], Tensor],
    ) -> list[float | None]:
        """As a call, by another reading (n, d) -> (n,) of the same features."""
        if not states and not responses:
            return []
        found = features(
            self.backbone,
            states,
            responses,
            pooling=self.config.pooling,
            numbers=self.config.numbers,
            max_batch_tokens=self.config.max_batch_tokens,
        )
        return [q if math.isfinite(q) else None for q in self._where_read(found, rate).tolist()]

    def scores(self, features: Tensor) -> Tensor:
        """Scores of rows whose features are at hand: (n, d) -> (n,), NaN where features are."""
        return self._where_read(features, self._rate)

    def _rate(self, features: Tensor) -> Tensor:
        return torch.as_tensor(self.head(features, self.config.pessimism))

    @torch.no_grad()
    def _where_read(self, features: Tensor, rate: Callable[[Tensor], Tensor]) -> Tensor:
        if features.shape[1] != self.head.feature_mean.shape[0]:
            return torch.full((features.shape[0],), math.nan)  # no row had a response at all
        return rate(features)

    def save(self, folder: Path) -> None:
        """Write the head, and the adapter of a tuned critic, as one artefact with checksums."""
        facts = {
            "config": asdict(self.config),
            "backbone": backbone_facts(self.backbone),
            "width": self.head.feature_mean.shape[0],
            "head_dtype": "float32",
            "log_sha256": self.log_sha256,
        }
        with artifacts.build(folder, KIND, facts) as place:
            artifacts.write_atomic(place / _HEAD, save(_tensors(self.head)))
            if tuned := critic_weights(self.backbone):
                artifacts.write_atomic(place / _CRITIC, save(tuned))

    @classmethod
    def load(cls, folder: Path, backbone: Backbone) -> QFunction:
        """Read a stored Q for the backbone that it was fitted on; a tuned one makes a copy of it.

        Raises:
            ArtifactError: if the head is missing, corrupt or incomplete, or was fitted on another
                policy, chat template or quantisation; a head is never made up.
        """
        facts = artifacts.open_sealed(folder, KIND)["facts"]
        path = folder / _HEAD
        if not path.is_file():
            raise ArtifactError(f"{folder} holds no {_HEAD}: fit Q again (fit-q), it has no head.")
        try:
            config = _config(facts["config"])
            fitted_on: dict[str, Any] = facts["backbone"]
            head = ValueHead(facts["width"], config.hidden, config.heads, config.dropout)
            head.load_state_dict(load_file(path), strict=True)
        except (KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
            raise ArtifactError(f"{path} can't be read as a value head: {error}") from error
        _check_backbone(folder, fitted_on, backbone_facts(backbone))
        head.eval()
        if config.tune is not None:
            backbone = _tuned(folder / _CRITIC, backbone, config.tune)
        return cls(backbone, head, config, log_sha256=facts.get("log_sha256"))


def _mean_and_spread(values: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Over the rows: (n,) or (n, d) -> () or (d,); None weighs all rows alike."""
    if weights is None:
        return values.mean(dim=0), values.std(dim=0, correction=0)
    share = (weights / weights.sum()).reshape(-1, *(1 for _ in values.shape[1:]))
    mean = (share * values).sum(dim=0)
    return mean, (share * (values - mean).square()).sum(dim=0).sqrt()


def _config(stored: dict[str, Any]) -> QConfig:
    tune = stored.get("tune")
    return QConfig(**{**stored, "tune": None if tune is None else TuneConfig(**tune)})


def _tuned(path: Path, backbone: Backbone, tune: TuneConfig) -> Backbone:
    try:
        return load_critic(backbone, tune.lora, load_file(path))
    except (ModelError, ValueError, RuntimeError, OSError) as error:
        raise ArtifactError(f"{path} can't be read as a critic's adapter: {error}") from error


def _tensors(head: ValueHead) -> dict[str, Tensor]:
    return {k: v.contiguous() for k, v in head.state_dict().items()}


def backbone_facts(backbone: Backbone) -> dict[str, Any]:
    """What a head depends on: the policy's identity, its quantisation and its chat template.

    The template counts as the token ids of a fixed probe, so that any change of template or
    tokenizer shows. The dtype is recorded but may differ: features are cast to fp32.
    """
    probe = json.dumps(list(backbone.chat.prompt_ids(_PROBE)))
    return {
        "policy": backbone.policy.id,
        "quantized": backbone.quantized,
        "template_sha256": hashlib.sha256(probe.encode()).hexdigest(),
        "dtype": str(backbone.dtype).removeprefix("torch."),
    }


def stored_quantization(folder: Path) -> Literal["nf4"] | None:
    """The form of the backbone that a stored Q was fitted on: what ``load`` takes to give it.

    Raises:
        ArtifactError: if ``folder`` holds no Q.
    """
    fitted = artifacts.open_sealed(folder, KIND)["facts"].get("backbone", {})
    return "nf4" if fitted.get("quantized") else None


def _check_backbone(folder: Path, fitted: dict[str, Any], given: dict[str, Any]) -> None:
    for name in ("policy", "quantized", "template_sha256"):
        if fitted.get(name) != given[name]:
            raise ArtifactError(
                f"{folder} was fitted on a backbone with {name} {fitted.get(name)!r}, but this one "
                f"has {given[name]!r}. Its scores would be meaningless: load the policy that the "
                "round deployed, or fit Q again (fit-q)."
            )
