"""plain_layers: a model whose LoRA layers are single, fast layers while it is sampled from.

In float32 they multiply by the sum of weight and adapter. In a 16-bit type, and where there is no
memory for the sums, the adapter stays a product of its own, in the type of the layer and without
PEFT's bookkeeping. The policy's own weights are never written to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from iterpo.models.lora_sum import adapters_of, few_enough, summed

__all__ = ["plain_layers"]


@contextmanager
def plain_layers(
    model: nn.Module, made: dict[nn.Module, nn.Module] | None = None
) -> Iterator[None]:
    """Put plain layers in the place of LoRA layers, for eval mode without gradients.

    They hold the adapter that is active now; all is as before afterwards. Layers that are more
    than a linear layer and one adapter stay as they are.

    Args:
        model: Any module with LoRA layers in it, or without any.
        made: What an earlier call with the same weights made, by layer; what is made is added.
    """
    made = {} if made is None else made
    found = [
        (parent, name, layer)
        for parent in model.modules()
        for name, layer in parent.named_children()
        if adapters_of(layer) is not None
    ]
    copied = few_enough(layer for _, _, layer in found)
    device = next(model.parameters()).device.type
    with torch.no_grad(), torch.autocast(device, enabled=False):
        made.update((x, _plain(x, copied)) for _, _, x in found if x not in made)
    try:
        for parent, name, layer in found:
            parent._modules[name] = made[layer]
        yield
    finally:
        for parent, name, layer in found:
            parent._modules[name] = layer


def _plain(layer: Any, copied: bool) -> nn.Module:
    base: nn.Linear = layer.get_base_layer()
    names = adapters_of(layer)
    if not names:
        return base
    if copied and base.weight.dtype == torch.float32:
        with torch.device("meta"):
            whole = nn.Linear(base.in_features, base.out_features, bias=False)
        whole.weight = nn.Parameter(summed(layer, names[0]), requires_grad=False)
        whole.bias = base.bias
        return whole.eval()
    return _Beside(base, layer, names[0]).eval()


class _Beside(nn.Module):
    """A linear layer and a low-rank one, summed."""

    def __init__(self, base: nn.Linear, layer: Any, name: str) -> None:
        super().__init__()
        self.base = base
        up = layer.lora_B[name].weight.float() * layer.scaling[name]
        self.down = layer.lora_A[name].weight.to(base.weight.dtype)  # (rank, in)
        self.up = up.to(base.weight.dtype).T.contiguous()  # (rank, out)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (…, out) of inputs (…, in)."""
        y: Tensor = self.base(x)
        low = nn.functional.linear(x, self.down)
        return torch.addmm(y.flatten(0, -2), low.flatten(0, -2), self.up).view_as(y)
