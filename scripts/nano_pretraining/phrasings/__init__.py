"""What a teacher says: templates per act, common ones and those of each game."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, fields
from functools import lru_cache

__all__ = ["Phrasings", "of_game"]


@dataclass(frozen=True, slots=True)
class Phrasings:
    """Templates per act; ``{box}`` is what the act boxes, other fields are the game's.

    No template names an amount of its own, and amounts stand shortly before the box: what is said
    is what is boxed, and near enough to be copied.
    """

    offer: tuple[str, ...] = ()
    """New terms."""
    step: tuple[str, ...] = ()
    """Terms nearer to the other side's than before."""
    hold: tuple[str, ...] = ()
    """The same terms again."""
    accept: tuple[str, ...] = ()
    """Consent to what the other side boxed; amounts named are those of the deal."""
    reject: tuple[str, ...] = ()
    """A refusal of the standing offer, without terms; ``{box}`` is empty under rule A."""
    talk: tuple[str, ...] = ()
    """Words without a box: questions, wishes, remarks."""
    plain: tuple[str, ...] = ()
    """Terms in words only."""
    leave: tuple[str, ...] = ()
    """The end without a deal."""

    def __add__(self, other: Phrasings) -> Phrasings:
        """Both together, act by act, without repeats."""
        both = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return Phrasings(**{name: tuple(dict.fromkeys(texts)) for name, texts in both.items()})

    def all(self) -> tuple[str, ...]:
        """Every template."""
        return tuple(text for f in fields(self) for text in getattr(self, f.name))


@lru_cache(maxsize=16)
def of_game(name: str) -> Phrasings:
    """All phrasings of a game's agent."""
    common, own = (
        importlib.import_module(f"nano_pretraining.phrasings.{module}")
        for module in ("common", name)
    )
    both: Phrasings = own.PHRASINGS + common.PHRASINGS
    return both
