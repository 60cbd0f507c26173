"""Drift alarms: how far a step's monitors may leave those of the first step before it is said."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from iterpo.domain.rules import broken, within

__all__ = ["DriftLimits", "Watch"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DriftLimits:
    """When a drift alarm is raised; alarms are said and counted, and change nothing else."""

    kl: float = 10.0
    """Nats per response from the round's policy. It adds up over rounds."""
    entropy_share: float = 0.25
    """Least entropy, as a share of the first step's."""
    length_factor: float = 2.0
    """Longest mean response, as a multiple of the first step's; the inverse is the shortest."""
    repetition_rise: float = 0.2
    """Rise of the share of repeated trigrams."""
    box_drop: float = 0.2
    """Fall of the share of responses with a complete box."""
    miscopied_rise: float = 0.2
    """Rise of the share of responses whose box holds a number out of nowhere."""

    def mistakes(self) -> list[str]:
        """Everything wrong with these values; empty if all is well."""
        rise = within("[0, inf)")
        return broken(
            self,
            kl=within("(0, inf)"),
            entropy_share=within("[0, 1]"),
            length_factor=within("[1, inf)"),
            repetition_rise=rise,
            box_drop=rise,
            miscopied_rise=rise,
        )


@dataclass(slots=True)
class Watch:
    """Compares the monitors of each step with those of the first."""

    limits: DriftLimits
    """When to raise an alarm."""
    first: dict[str, float] = field(default_factory=dict)
    """The first value of each monitor; kept in checkpoints, so that a resume compares alike."""
    told: dict[str, int] = field(default_factory=dict)
    """Steps at which each alarm held, by kind; kept in checkpoints too."""

    def check(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """The kinds of drift that hold at this step; each is said aloud the first time only."""
        for name, value in metrics.items():
            self.first.setdefault(name, value)
        raised = self._raised(metrics)
        for kind, message in raised.items():
            if kind not in self.told:
                _log.warning("step %d: %s", step, message)
            self.told[kind] = self.told.get(kind, 0) + 1
        return list(raised)

    def _raised(self, metrics: Mapping[str, float]) -> dict[str, str]:
        limits, raised = self.limits, {}

        def told(kind: str, name: str, what: str, advice: str) -> None:
            raised[kind] = (
                f"{what} went from {self.first[name]:.3g} to {metrics[name]:.3g}; {advice}"
            )

        def change(name: str) -> float:
            return metrics.get(name, 0.0) - self.first.get(name, 0.0) if name in metrics else 0.0

        if metrics.get("kl_response", 0.0) > limits.kl:
            advice = "set kl_target or kl_stop, or a smaller learning_rate or fewer steps"
            told("kl", "kl_response", "KL to the round's policy (nats per response)", advice)
        if metrics.get("entropy", 0.0) < limits.entropy_share * self.first.get("entropy", 0.0):
            told("entropy", "entropy", "entropy (nats per token)", "an entropy_bonus holds it up")
        before = self.first.get("completion_tokens", 0.0)
        length = metrics.get("completion_tokens", before)
        if length > limits.length_factor * before or length * limits.length_factor < before:
            told("length", "completion_tokens", "mean length in tokens", "read some responses")
        if change("repeated_ngrams") > limits.repetition_rise:
            told("repetition", "repeated_ngrams", "share of repeated trigrams", "read some")
        if -change("box_rate") > limits.box_drop:
            told("boxes", "box_rate", "share of responses with a complete box", "read some")
        if change("miscopied") > limits.miscopied_rise:
            told(
                "miscopied", "miscopied", "share of boxes with a number out of nowhere", "read some"
            )
        return raised
