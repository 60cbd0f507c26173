"""folded: adapted layers multiply by one matrix, base weight plus adapter, during a long pass.

The sum saves two products for every token, so it pays for many tokens; gradients reach the adapter
through it. Nothing is merged: the weights in memory are never changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from iterpo.models.lora_sum import adapters_of, few_enough, summed

__all__ = ["folded"]


@contextmanager
def folded(model: nn.Module) -> Iterator[None]:
    """Fold the adapters of ``model`` for the passes inside, wherever that is exact and pays.

    Args:
        model: Any module with LoRA layers in it, or without any.
    """
    found = {m: adapters_of(m) for m in model.modules() if "forward" not in m.__dict__}
    layers: dict[Any, str] = {m: names[0] for m, names in found.items() if names}
    if not few_enough(layers):
        layers = {}
    sums: dict[Any, Tensor] = {}
    for layer, name in layers.items():
        layer.__dict__["forward"] = partial(_forward, layer, name, sums)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def _forward(
    layer: Any, name: str, sums: dict[Any, Tensor], x: Tensor, *args: Any, **options: Any
) -> Tensor:
    base = layer.get_base_layer()
    tokens, size = x.numel() // x.shape[-1], base.weight.numel()
    pays = tokens * sum(base.weight.shape) > size
    kinds = {x.dtype, base.weight.dtype, layer.lora_A[name].weight.dtype}
    exact = kinds == {torch.float32} and not torch.is_autocast_enabled(x.device.type)
    if args or options or not pays or not exact:
        return type(layer).forward(layer, x, *args, **options)  # type: ignore[no-any-return]
    if layer not in sums:
        sums[layer] = summed(layer, name)
    return nn.functional.linear(x, sums[layer], base.bias)
