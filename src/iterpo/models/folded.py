"""folded: adapted layers multiply by one matrix, base weight plus adapter, during a long pass.

x W^T + s (x A^T) B^T = x (W + s B A)^T. The right side adds matrices once and saves two products
for every token, so it pays for many tokens; gradients reach A and B through the sum. Only in
float32, where both sides are equal to rounding: in 16 bits the sum would lose the adapter's small
numbers. Nothing is merged: the weights in memory are never changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["folded"]

_MOST = 2**28  # weights that may be held a second time, of 4 bytes each


@contextmanager
def folded(model: nn.Module) -> Iterator[None]:
    """Fold the adapters of ``model`` for the passes inside, wherever that is exact and pays.

    Args:
        model: Any module with LoRA layers in it, or without any.
    """
    from peft.tuners.lora.layer import Linear

    layers: list[Any] = [
        m for m in model.modules() if type(m) is Linear and "forward" not in m.__dict__
    ]
    if sum(layer.get_base_layer().weight.numel() for layer in layers) > _MOST:
        layers = []
    sums: dict[int, Tensor] = {}
    for layer in layers:
        layer.__dict__["forward"] = partial(_forward, layer, sums)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def _forward(layer: Any, sums: dict[int, Tensor], x: Tensor, *args: Any, **options: Any) -> Tensor:
    weight = layer.base_layer.weight
    tokens, size = x.numel() // x.shape[-1], weight.numel()
    pays = tokens * sum(weight.shape) > size
    if args or options or not pays or not _exact(layer, x):
        return type(layer).forward(layer, x, *args, **options)  # type: ignore[no-any-return]
    if id(layer) not in sums:
        name = layer.active_adapters[0]
        a, b = layer.lora_A[name].weight, layer.lora_B[name].weight
        sums[id(layer)] = torch.addmm(weight, b, a, alpha=layer.scaling[name])
    return nn.functional.linear(x, sums[id(layer)], layer.base_layer.bias)


def _exact(layer: Any, x: Tensor) -> bool:
    """Whether the layer is x W^T + s (x A^T) B^T in float32, and nothing more."""
    active = [name for name in layer.active_adapters if name in layer.lora_A]
    if layer.disable_adapters or layer.merged or len(layer.active_adapters) != 1 or not active:
        return False
    (name,) = active
    dropout = layer.lora_dropout[name]
    return (
        type(layer.base_layer) is nn.Linear
        and name not in layer.lora_variant
        and layer.lora_B[name].bias is None
        and not layer.fan_in_fan_out
        and (isinstance(dropout, nn.Identity) or not layer.training)
        and not torch.is_autocast_enabled(x.device.type)
        and {x.dtype, layer.base_layer.weight.dtype, layer.lora_A[name].weight.dtype}
        == {torch.float32}
    )
