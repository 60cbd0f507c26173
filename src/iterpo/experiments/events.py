"""What a phase tells while it works: one JSON line per event, so any process can listen."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = ["Event", "Report", "decode", "encode", "ignore"]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened in a run."""

    kind: Literal["started", "progress", "finished", "skipped", "note"]
    """``skipped``: found done on resume."""
    key: str
    """Phase, e.g. ``round-0/deploy``."""
    stage: str = ""
    """Part of the phase, e.g. ``collect``, ``heldout``, ``fit_q``, ``improve``."""
    done: int = 0
    """Finished units of the stage."""
    total: int = 0
    """Planned units of the stage."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Numbers for people, e.g. agreement so far."""
    text: str = ""
    """A remark."""


Report = Callable[[Event], None]
"""Receives events; a command line draws progress bars from them."""


def ignore(event: Event) -> None:
    """A report that says nothing."""


def encode(event: Event) -> str:
    """An event as one line."""
    return json.dumps(asdict(event)) + "\n"


def decode(line: str) -> Event:
    """The event of one line."""
    return Event(**json.loads(line))
