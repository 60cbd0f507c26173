"""A critic: a copy of a policy's weights with a small adapter of its own on top, for scoring.

The policy's own model is never touched. The copy computes with the policy as it was loaded and
the critic's adapter beside it; before any training that adapter adds nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from iterpo.errors import ModelError
from iterpo.models.backbone import CRITIC, Backbone, fresh_adapter, frozen
from iterpo.models.lora import LoraSpec

__all__ = ["attach_critic", "critic_weights", "learning", "load_critic"]


def attach_critic(backbone: Backbone, spec: LoraSpec, seed: int) -> Backbone:
    """A backbone with weights of its own and a fresh critic's adapter.

    Args:
        backbone: The policy; unchanged afterwards.
        spec: Shape of the adapter; need not be that of the policy's.
        seed: Of the adapter's initial weights.

    Raises:
        ModelError: for a 4-bit base, or one that holds a critic already.
    """
    from peft import PeftModel, get_peft_model

    if backbone.quantized or backbone.critic is not None:
        what = "a 4-bit base" if backbone.quantized else "a backbone with a critic"
        raise ModelError(f"{what} can't get a critic's adapter; give the policy itself in 16 bits")
    with fresh_adapter(spec, backbone.device, seed) as config:
        model = copy.deepcopy(backbone.model)
        if isinstance(model, PeftModel):
            model.add_adapter(CRITIC, config)
        else:
            model = get_peft_model(model, config, adapter_name=CRITIC)
    model.eval().requires_grad_(False)
    return replace(backbone, model=model, critic=CRITIC)


@contextmanager
def learning(critic: Backbone) -> Iterator[list[nn.Parameter]]:
    """Compute as the critic with gradients to its adapter alone; frozen again afterwards.

    Yields:
        The adapter's parameters.
    """
    with frozen(critic), torch.enable_grad(), torch.autocast(critic.device.type, enabled=False):
        own = [(name, p) for name, p in critic.model.named_parameters() if f".{CRITIC}." in name]
        for name, parameter in critic.model.named_parameters():
            parameter.requires_grad_(f".{CRITIC}." in name)
        try:
            yield [parameter for _, parameter in own]
        finally:
            critic.model.requires_grad_(False)


def critic_weights(critic: Backbone) -> dict[str, Tensor]:
    """The adapter's weights by name, for storing; empty for a backbone without a critic."""
    from peft import get_peft_model_state_dict

    if critic.critic is None:
        return {}
    found: Mapping[str, Any] = get_peft_model_state_dict(critic.model, adapter_name=CRITIC)
    return {name: tensor.detach().cpu().contiguous() for name, tensor in found.items()}


def load_critic(backbone: Backbone, spec: LoraSpec, weights: Mapping[str, Tensor]) -> Backbone:
    """The critic whose weights were stored, on the policy that it was trained on.

    Raises:
        ModelError: if the weights are not those of such an adapter on such a model.
    """
    from peft import set_peft_model_state_dict

    critic = attach_critic(backbone, spec, seed=0)
    expected = {name: tuple(t.shape) for name, t in critic_weights(critic).items()}
    given = {name: tuple(t.shape) for name, t in weights.items()}
    if given != expected:
        wrong = sorted(n for n in {*given, *expected} if given.get(n) != expected.get(n))
        raise ModelError(
            f"{len(wrong)} weights of the critic's adapter are missing, unknown or of another "
            f"shape (first: {wrong[0]}); it belongs to another model, or to another rank"
        )
    set_peft_model_state_dict(critic.model, dict(weights), adapter_name=CRITIC)
    critic.model.eval().requires_grad_(False)
    return critic
