"""Alarms: what goes wrong silently in group-relative training is said aloud."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from iterpo.errors import TrainingError

__all__ = ["Alarms"]

_log = logging.getLogger(__name__)

_UNSCORED_STEPS = 3


@dataclass(slots=True)
class Alarms:
    """Watches the metrics of each step and warns through ``logging``."""

    clipped_ratio: float
    """Largest share of candidates that may be cut at ``max_new_tokens``."""
    flat_steps: int
    """Steps in a row without any spread of scores before the alarm."""
    streaks: dict[str, int] = field(default_factory=dict)
    """Steps in a row by condition, and alarms by kind; kept in checkpoints, so a resume warns
    alike."""

    def check(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """Warn about this step's metrics; returns the alarms raised.

        Raises:
            TrainingError: if the reward scored nothing at all for several steps in a row.
        """
        raised: dict[str, str] = {}
        clipped = metrics["clipped_ratio"]
        if clipped > self.clipped_ratio:
            raised["clipped"] = (
                f"step {step}: {clipped:.0%} of the responses were cut at max_new_tokens (alarm "
                f"at {self.clipped_ratio:.0%}), so their rewards are those of unfinished "
                "messages; raise sampling.max_new_tokens"
            )
        flat = self._streak("flat", metrics["frac_tied_groups"] >= 1.0)
        if flat >= self.flat_steps:
            raised["tied"] = (
                f"step {step}: no group of candidates had any spread of rewards for {flat} steps "
                "in a row, so nothing is learned; check the reward, raise the temperature or the "
                "group size"
            )
        missing = metrics["frac_unscored"]
        if missing > 0:
            raised["missing"] = (
                f"step {step}: {missing:.1%} of the responses have no reward; left out"
            )
        for kind, message in raised.items():
            self._warn(kind, message)
        if self._streak("unscored", missing >= 1.0) >= _UNSCORED_STEPS:
            raise TrainingError(
                f"the reward returned None or NaN for every response of {_UNSCORED_STEPS} steps in "
                "a row; nothing can be learned from it. Check the reward."
            )
        return list(raised.values())

    def _warn(self, kind: str, message: str) -> None:
        """Aloud the 1st, 2nd, 4th, 8th, … time; the metrics count every time."""
        times = self.streaks[f"{kind} alarms"] = self.streaks.get(f"{kind} alarms", 0) + 1
        if times & (times - 1) == 0:
            again = f" (alarm number {times} of this kind)" if times > 1 else ""
            _log.warning("%s%s", message, again)

    def _streak(self, name: str, holds: bool) -> int:
        self.streaks[name] = self.streaks.get(name, 0) + 1 if holds else 0
        return self.streaks[name]
