"""summed: a linear layer and its LoRA adapter as one matrix, where that is all that they are.

x W^T + s (x A^T) B^T = x (W + s B A)^T. Only in float32 are both sides equal to rounding: in 16
bits the sum would lose the adapter's small numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["adapters_of", "few_enough", "summed"]

_MOST = 2**28  # weights that may be held a second time, of 4 bytes each


def adapters_of(layer: nn.Module) -> list[str] | None:
    """The adapters, one at most, that a LoRA layer adds to a linear one; None if it does more."""
    from peft.tuners.lora.layer import Linear

    if type(layer) is not Linear:
        return None
    lora: Any = layer
    names = [n for n in lora.active_adapters if n in lora.lora_A and not lora.disable_adapters]
    plain = (
        len(names) <= 1
        and type(lora.get_base_layer()) is nn.Linear
        and not lora.merged
        and not lora.fan_in_fan_out
        and all(
            n not in lora.lora_variant
            and lora.lora_B[n].bias is None
            and (isinstance(lora.lora_dropout[n], nn.Identity) or not lora.training)
            for n in names
        )
    )
    return names if plain else None


def few_enough(layers: Iterable[Any]) -> bool:
    """Whether there is memory for the sums of all layers at once."""
    return bool(sum(layer.get_base_layer().weight.numel() for layer in layers) <= _MOST)


def summed(layer: Any, name: str) -> Tensor:
    """W + s B A (out, in), with gradients to A and B where they are wanted."""
    weight = layer.get_base_layer().weight
    a, b = (x[name].weight.to(weight.dtype) for x in (layer.lora_A, layer.lora_B))
    return torch.addmm(weight, b, a, alpha=layer.scaling[name])
