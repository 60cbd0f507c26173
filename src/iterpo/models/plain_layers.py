"""plain_layers: a model whose LoRA layers are single, fast layers while it is sampled from.

In float32 a layer's adapter is added to a copy of its weight, which changes outputs by rounding
alone. In a 16-bit type that would cost precision, and beyond 1 GiB of copies memory, so there the
adapter stays a product of its own, in the type of the layer and without PEFT's bookkeeping. The
policy's own weights are never written to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["plain_layers"]

_MOST_COPIED = 2**28  # weights, of 4 bytes each


@contextmanager
def plain_layers(model: nn.Module) -> Iterator[None]:
    """Put plain layers in the place of LoRA layers, for eval mode without gradients.

    They hold the adapters that are active now; all is as before afterwards. Layers that are more
    than a plain LoRA around a plain linear layer stay as they are.
    """
    found = list(_lora_layers(model))
    copied = sum(layer.get_base_layer().weight.numel() for _, _, layer in found) <= _MOST_COPIED
    device = next(model.parameters()).device.type
    with torch.no_grad(), torch.autocast(device, enabled=False):
        plain = [_plain(layer, copied) for _, _, layer in found]
    try:
        for (parent, name, _), layer in zip(found, plain, strict=True):
            parent._modules[name] = layer
        yield
    finally:
        for parent, name, layer in found:
            parent._modules[name] = layer


def _lora_layers(model: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    """Parent, name and layer of every LoRA layer that a plain one can stand for."""
    from peft.tuners.lora.layer import Linear

    for parent in model.modules():
        for name, child in parent.named_children():
            layer: Any = child
            if type(layer) is not Linear or type(layer.get_base_layer()) is not nn.Linear:
                continue
            unusual = layer.merged or layer.fan_in_fan_out or layer.training
            unusual |= any(
                n in layer.lora_variant or layer.lora_B[n].bias is not None for n in _active(layer)
            )
            if not unusual:
                yield parent, name, layer


def _active(layer: Any) -> list[str]:
    if layer.disable_adapters:
        return []
    return [n for n in layer.active_adapters if n in layer.lora_A]


def _plain(layer: Any, copied: bool) -> nn.Module:
    base: nn.Linear = layer.get_base_layer()
    names = _active(layer)
    if not names:
        return base
    # Side by side, several adapters are one whose rank is the sum.
    down = torch.cat([layer.lora_A[n].weight.float() for n in names], dim=0)  # (rank, in)
    up = torch.cat([layer.lora_B[n].weight.float() * layer.scaling[n] for n in names], dim=1)
    if copied and base.weight.dtype == torch.float32:
        with torch.device("meta"):
            summed = nn.Linear(base.in_features, base.out_features, bias=False)
        summed.weight = nn.Parameter(torch.addmm(base.weight, up, down), requires_grad=False)
        summed.bias = base.bias
        return summed.eval()
    return _Beside(base, down.to(base.weight.dtype), up.to(base.weight.dtype)).eval()


class _Beside(nn.Module):
    """A linear layer and a low-rank one, summed."""

    def __init__(self, base: nn.Linear, down: Tensor, up: Tensor) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = down, up.T.contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (…, out) of inputs (…, in)."""
        y: Tensor = self.base(x)
        low = nn.functional.linear(x, self.down)
        return torch.addmm(y.flatten(0, -2), low.flatten(0, -2), self.up).view_as(y)
