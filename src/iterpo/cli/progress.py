"""How progress is shown: a live bar in a terminal, plain lines elsewhere; on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from iterpo.cli.output import remark

if TYPE_CHECKING:
    from iterpo.experiments.events import Event, Report

__all__ = ["Bars", "listening"]

_SHOWN = {
    "agreement": "agreed {:.0%}",
    "conversations_per_s": "{:.1f} conv/s",
    "tokens_per_s": "{:.0f} tok/s",
    "failed": "{:.0f} failed",
    "report/mse": "mse {:.4f}",
    "final/mse": "mse {:.4f}",
    "report/heldout_mse": "held-out mse {:.4f}",
    "reward": "Q {:.3f}",
    "reward/mean": "Q {:.3f}",
    "kl": "KL {:.3f}",
    "entropy": "entropy {:.2f}",
    "running": "{:.0f} running",
    "cells_failed": "{:.0f} failed",
    "minutes_left": "about {:.0f} min left",
}
_HIDDEN_WHEN_ZERO = {"failed", "cells_failed"}
_PLAIN_EVERY_S = 10.0


@contextmanager
def listening() -> Iterator[Report]:
    """A report for a run, shown as long as the block lasts."""
    with Bars() as bars:
        yield lambda event: _show(bars, event)


def _show(bars: Bars, event: Event) -> None:
    if event.kind == "progress":
        bars.update(f"{event.key} {event.stage}".strip(), event.done, event.total, event.facts)
    elif event.kind == "skipped":
        bars.line(f"{event.key}: already done")
    elif event.kind == "started":
        bars.line(f"{event.key} ...")
    elif event.kind == "note":
        bars.line(f"{event.key}: {event.text}")


class Bars:
    """Progress of named stages, one bar for each; lines every 10 s where there is no terminal."""

    def __init__(self) -> None:
        """Nothing is drawn before the first update."""
        self._live: Any = None
        self._tasks: dict[str, Any] = {}
        self._told: dict[str, float] = {}

    def __enter__(self) -> Bars:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
            from rich.progress import TimeRemainingColumn as Remaining

            self._live = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                Remaining(),
                TextColumn("{task.fields[facts]}"),
                console=Console(stderr=True),
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def line(self, text: str) -> None:
        """A remark above the bars."""
        if self._live:
            self._live.console.print(text, highlight=False, markup=False)
        else:
            remark(text)

    def update(self, stage: str, done: int, total: int, facts: Mapping[str, Any]) -> None:
        """A stage has come this far."""
        shown = _in_words(facts)
        if self._live:
            if stage not in self._tasks:
                self._tasks[stage] = self._live.add_task(stage, total=total or None, facts=shown)
            self._live.update(self._tasks[stage], completed=done, total=total or None, facts=shown)
            return
        since = self._told.setdefault(stage, time.monotonic())
        if done != total and time.monotonic() - since < _PLAIN_EVERY_S:
            return
        self._told[stage] = time.monotonic()
        remark(f"  {stage} {done}/{total}  {shown}".rstrip())


def _in_words(facts: Mapping[str, Any]) -> str:
    parts = [
        text.format(facts[key])
        for key, text in _SHOWN.items()
        if isinstance(facts.get(key), (int, float))
        and not (key in _HIDDEN_WHEN_ZERO and not facts[key])
    ]
    return ", ".join(parts)
