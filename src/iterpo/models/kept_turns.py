"""KeptTurns: keys and values of a conversation so far, so that its next prompt need not start anew.

What is kept is matched token by token. A prompt that goes on from it runs through the model from
where it differs, so a template that rewrites earlier turns, or a note that moves, costs time only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from iterpo.models.beginnings import same_beginning

__all__ = ["KeptTurns", "LayerStates", "Past", "weights_stamp"]

LayerStates = Sequence[tuple[Tensor, Tensor]]
"""Keys and values (key heads, n, d) of each layer."""

_LEAST = 8  # tokens for which it pays to look back


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """A prompt's first tokens, as they went through the model before."""

    length: int
    """Tokens of the prompt that are known; at least one is left to run."""
    states: LayerStates
    """Keys and values of these tokens, and perhaps of further ones."""


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    ids: tuple[int, ...]
    states: LayerStates

    @property
    def size(self) -> int:
        return sum(x.numel() * x.element_size() for pair in self.states for x in pair)


class KeptTurns:
    """The last prompt of each speaker with the response to it, for one model.

    Args:
        most_bytes: Memory that may be held. What does not fit beside the rest is not kept: to drop
            what another speaker needs next would help nobody. What fits depends on the order of
            calls alone, so runs repeat.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self.layers: dict[nn.Module, nn.Module] = {}
        """What ``plain_layers`` made of the same weights."""
        self._entries: dict[Hashable, _Entry] = {}
        self._stamp: object = None
        self._token_bytes = 0

    @property
    def count(self) -> int:
        """Speakers with something kept."""
        return len(self._entries)

    def check(self, stamp: object) -> None:
        """Forget everything if the weights are not those that it was computed with."""
        if stamp != self._stamp:
            self._entries.clear()
            self.layers.clear()
            self.bytes, self._stamp = 0, stamp

    def find(self, speaker: Hashable, prompt: Sequence[int]) -> Past | None:
        """What is known of a prompt; None if that is too little to be of use."""
        entry = self._entries.get(speaker)
        if entry is None:
            return None
        n = min(same_beginning(entry.ids, prompt), len(prompt) - 1)
        return Past(n, entry.states) if n >= _LEAST else None

    def keep(
        self, speaker: Hashable, ids: Sequence[int], states: Callable[[], LayerStates | None]
    ) -> None:
        """Keep the states of ``ids`` in the place of what the speaker had before.

        Args:
            speaker: Whose prompt it is.
            ids: The prompt and what of the response has run.
            states: Their keys and values, asked for only where they may fit; None if not plain.
        """
        self.drop(speaker)
        if self.bytes + len(ids) * self._token_bytes > self.most_bytes:
            return
        found = states()
        if found is None:
            return
        entry = _Entry(tuple(ids), found)
        self._token_bytes = entry.size // len(ids)
        if self.bytes + entry.size <= self.most_bytes:
            self._entries[speaker] = entry
            self.bytes += entry.size

    def drop(self, speaker: Hashable) -> None:
        """The speaker's conversation is over."""
        entry = self._entries.pop(speaker, None)
        if entry is not None:
            self.bytes -= entry.size


def weights_stamp(model: Any) -> tuple[object, ...]:
    """A value that changes when an optimiser, a loaded state or another adapter changes a model.

    Writing through ``Tensor.data`` goes unnoticed, as it does for autograd.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    tuned = [m for m in model.modules() if isinstance(m, BaseTunerLayer)]
    active = tuple((tuple(m.active_adapters), m.disable_adapters) for m in tuned)
    return id(model), active, sum(p._version for p in model.parameters())
