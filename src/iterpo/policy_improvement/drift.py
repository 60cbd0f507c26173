"""How far the policy has moved from the round's policy, exactly at each token of its own draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from iterpo.models.backbone import Backbone, frozen
from iterpo.models.generation import evaluating
from iterpo.policy_improvement.shared_prompt import response_logits

__all__ = [
    "Moved",
    "Responses",
    "adapter_of",
    "measure",
    "put_back",
    "read_adapter",
    "write_adapter",
]


@dataclass(frozen=True, slots=True)
class Responses:
    """Responses beside their prompts, as a model takes them."""

    ids: torch.Tensor
    """(B, P + C): prompts padded on the left, responses on the right."""
    mask: torch.Tensor
    """(B, P + C), 1 on real tokens."""
    length: int
    """C."""

    def chunks(self, size: int) -> Iterator[Responses]:
        """At most ``size`` at a time."""
        for ids, mask in zip(
            torch.split(self.ids, size), torch.split(self.mask, size), strict=True
        ):
            yield Responses(ids, mask, self.length)


@dataclass(frozen=True, slots=True)
class Moved:
    """Distance from the round's policy."""

    per_response: float
    """KL(policy || round's policy) in nats: summed over tokens, mean over responses."""
    per_token: float
    """The same sum per token."""
    entropy: float
    """Entropy of the policy in nats per token."""


def measure(
    backbone: Backbone,
    model: Any,
    responses: Responses,
    *,
    temperature: float,
    size: int,
    shared: bool,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> Moved:
    """KL of the policy from the one that ``backbone`` was loaded with, and its entropy.

    At every token of the responses the whole distributions are compared, not the drawn token
    alone: the value has no noise but that of which responses were drawn, is never negative, and
    sees the tokens that the policy no longer draws. The estimate is unbiased for responses drawn
    by the policy itself.

    Args:
        backbone: Knows the round's policy.
        model: The policy.
        responses: Drawn by it.
        temperature: At which both are compared.
        size: Responses per forward pass.
        shared: Whether a pass may compute a common prompt once.
        autocast: Context of a forward pass.
    """
    kl = entropy = tokens = 0.0
    for part in responses.chunks(size):
        mask = part.mask[:, -part.length :]
        both = []
        for where in (evaluating(model), frozen(backbone)):
            with where, autocast():
                logits = response_logits(model, part.ids, part.mask, part.length, shared=shared)
                both.append(torch.log_softmax(logits / temperature, -1))
        now, then = both
        p = now.exp()
        kl += float(((p * (now - then)).sum(-1).clamp(min=0).double() * mask).sum())
        entropy -= float(((p * now).sum(-1).double() * mask).sum())
        tokens += float(mask.sum())
    return Moved(kl / max(len(responses.ids), 1), kl / max(tokens, 1.0), entropy / max(tokens, 1.0))


def adapter_of(model: Any) -> dict[str, torch.Tensor]:
    """A copy of the weights in training."""
    return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}


def put_back(model: Any, weights: dict[str, torch.Tensor]) -> None:
    """Set the weights in training to an earlier copy."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])


def write_adapter(path: Path, weights: dict[str, torch.Tensor]) -> None:
    """Keep a copy of weights in a file."""
    save_file({n: w.contiguous() for n, w in weights.items()}, path)


def read_adapter(path: Path) -> dict[str, torch.Tensor]:
    """The weights of ``write_adapter``."""
    weights: dict[str, torch.Tensor] = load_file(path)
    return weights
