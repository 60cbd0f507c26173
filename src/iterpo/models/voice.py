"""Voice: what a speaker must know of the model that speaks for it, whatever draws its tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # whoever only describes a model needs no torch
    from iterpo.domain import PolicyRef
    from iterpo.models.chat import ChatFormat

__all__ = ["Voice"]


class Voice(Protocol):
    """A model that can be rendered for; a ``Backbone`` is one, and so is a ``VllmSampler``."""

    @property
    def policy(self) -> PolicyRef:
        """Identity of the weights."""
        ...

    @property
    def chat(self) -> ChatFormat:
        """Its chat format."""
        ...

    @property
    def context_length(self) -> int:
        """Longest sequence in tokens."""
        ...
