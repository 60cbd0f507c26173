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
from iterpo.models.kept_states import KeptStates
from iterpo.policy_improvement.shared_prompt import token_logits, token_states, vocabulary

__all__ = [
    "Moved",
    "Responses",
    "adapter_of",
    "measure",
    "put_back",
    "read_adapter",
    "write_adapter",
]

_HELD = 2**25  # logits of each policy that are held at a time
_CACHED = 2**22  # of these, as many as a processor's cache holds


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
    known: KeptStates | None = None,
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
        known: States of the round's policy: read where they are kept, and left where not.
    """
    parts = list(responses.chunks(size))
    with evaluating(model), autocast():
        now = torch.cat([_states(model, part, shared) for part in parts])
    with frozen(backbone), autocast():
        then = torch.cat([_then(model, part, shared, known) for part in parts])
    kl = entropy = 0.0
    at_once = max(1, _HELD // vocabulary(model))
    for some, same in zip(torch.split(now, at_once), torch.split(then, at_once), strict=True):
        with evaluating(model), autocast():
            logits = token_logits(model, some)
        with frozen(backbone), autocast():
            reference = token_logits(model, same)
        moved, own = _compared(logits, reference, temperature)
        kl += moved
        entropy += own
    tokens = max(len(now), 1)
    return Moved(kl / max(len(responses.ids), 1), kl / tokens, entropy / tokens)


def _states(model: Any, part: Responses, shared: bool) -> torch.Tensor:
    return token_states(model, part.ids, part.mask, part.length, shared=shared)


def _then(model: Any, part: Responses, shared: bool, known: KeptStates | None) -> torch.Tensor:
    if known is None:
        return _states(model, part, shared)
    n, real = part.length, part.mask.bool()
    pairs = [
        (ids[:-n][own[:-n]].tolist(), ids[-n:][own[-n:]].tolist())
        for ids, own in zip(part.ids, real, strict=True)
    ]
    found = [known.of(*pair) for pair in pairs]
    if all(f is not None for f in found):
        return torch.cat([f for f in found if f is not None])
    states = _states(model, part, shared)
    lengths = [len(said) for _, said in pairs]
    for pair, own in zip(pairs, torch.split(states, lengths), strict=True):
        known.put(*pair, own)
    return states


def _compared(now: torch.Tensor, then: torch.Tensor, temperature: float) -> tuple[float, float]:
    """KL and entropy in nats, summed over places, from logits (n, V)."""
    kl = entropy = 0.0
    rows = max(1, _CACHED // now.size(1))
    for both in zip(torch.split(now, rows), torch.split(then, rows), strict=True):
        a, b = (torch.log_softmax(x.float() / temperature, -1) for x in both)
        p = a.exp()
        kl += float(torch.sub(a, b, out=b).mul_(p).sum(-1).clamp(min=0).double().sum())
        entropy -= float(a.mul_(p).sum(-1).double().sum())
    return kl, entropy


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
