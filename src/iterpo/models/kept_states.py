"""keeping: hidden states of the frozen policy that one reader computed and another one needs too.

A fitted Q reads the frozen policy's states at every candidate; the reference of a KL term is a
function of the same states. Whoever asks for both lets the first pass serve for the second. Of
Q's pass in float32 only: in 16 bits the two are computed with different roundings, which KL would
show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from iterpo.models.backbone import Backbone

__all__ = ["KeptStates", "keep", "keeping"]


@dataclass(slots=True)
class KeptStates:
    """Final layer's states of one frozen policy, by prompt and response."""

    backbone: Backbone
    """The policy as it was loaded; another object, even of the same weights, is another policy."""
    needed: bool = True
    """Whether anything is to be kept."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], Tensor] = field(default_factory=dict)
    """(r, d) by prompt and response."""

    def of(self, prompt: Sequence[int], said: Sequence[int]) -> Tensor | None:
        """The states (r, d) that predict a response's r tokens, if they were kept."""
        return self.found.get((tuple(prompt), tuple(said)))

    def put(self, prompt: Sequence[int], said: Sequence[int], states: Tensor) -> None:
        """Keep the states (r, d) that predict a response's r tokens."""
        if self.needed:
            self.found[tuple(prompt), tuple(said)] = states


_wanted: ContextVar[KeptStates | None] = ContextVar("wanted", default=None)


@contextmanager
def keeping(backbone: Backbone, needed: bool = True) -> Iterator[KeptStates]:
    """What is computed inside with ``backbone`` is kept, where that is exact and ``needed``."""
    kept = KeptStates(backbone, needed)
    token = _wanted.set(kept if backbone.dtype == torch.float32 else None)
    try:
        yield kept
    finally:
        _wanted.reset(token)


def keep(backbone: Backbone, prompt: Sequence[int], said: Sequence[int], states: Tensor) -> None:
    """Offer the states (r, d) that predict a response's r tokens; costs nothing if none asked."""
    kept = _wanted.get()
    if kept is not None and kept.backbone is backbone:
        kept.put(prompt, said, states)
