"""Verdict: did an update make the policy better? Said from evidence, before anyone is served.

``improved`` needs a lower bound above 0 from data that the update never learnt from. ``refused``
needs an upper bound below 0, or a guard that trips. Everything else is ``unchanged``: nothing can
be said. A judge is heard only if it surely knows something. Importable without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from iterpo.domain.rules import broken, one_of, within
from iterpo.errors import ConfigError

if TYPE_CHECKING:  # it needs numpy, and a plan is read without
    from iterpo.measure.intervals import Interval
    from iterpo.measure.off_policy import Gain

__all__ = ["Evidence", "Verdict", "VerdictConfig", "VerdictWord", "confidence_of_each", "decide"]

VerdictWord = Literal["improved", "unchanged", "refused"]
"""What an update can come to."""


@dataclass(frozen=True, slots=True)
class VerdictConfig:
    """What a verdict looks at, and what follows from it."""

    states: int = 64
    """Logged states at which both policies speak again, for the judge, the distance between the
    policies and coverage; chosen by a hash. 0: no verdict at all, and no share for a judge."""
    candidates: int = 2
    """Responses of each policy at each of them, drawn with the same random numbers."""
    conversations: int = 200
    """Most conversations that the off-policy estimates weigh anew; chosen by a hash."""
    confidence: float = 0.95
    """Coverage of all intervals together: with several sources each gets its share of the error.
    Of policies that are worth the same as before, half of the rest at most should be called
    `improved`; decision 0024 tells what was measured, and where it is more."""
    min_ess: float = 20.0
    """Effective sample size from which on an off-policy estimate may speak."""
    min_ess_share: float = 0.1
    """The same, as a share of the samples; both must be reached."""
    max_kl: float | None = None
    """Guard: refuse if a response of the new policy is further than this from the old one, in nats
    (mean KL per response); null: no limit."""
    max_unseen: float | None = None
    """Guard: refuse if a larger share of the new policy's responses lies outside what was logged
    (5% is ordinary); null: no limit."""
    on_refused: Literal["keep", "discard"] = "keep"
    """`keep`: a refused policy is deployed nevertheless; `discard`: the next round deploys the
    policy that the update started from once more, and trains on both of its logs."""

    def __post_init__(self) -> None:
        """Refuse impossible values.

        Raises:
            ConfigError: with one line for each mistake.
        """
        found = broken(
            self,
            states=within("[0, inf)", zero="no verdict"),
            candidates=within("[1, inf)"),
            conversations=within("[0, inf)", zero="no off-policy estimate"),
            confidence=within("(0, 1)"),
            min_ess=within("[0, inf)"),
            min_ess_share=within("[0, 1]"),
            max_kl=within("(0, inf)", null=""),
            max_unseen=within("(0, 1]", null=""),
            on_refused=one_of(("keep", "discard")),
        )
        if self.states == 0 and self.on_refused == "discard":
            found.append("states: given 0 with on_refused discard; accepted: 1 or more")
        if found:
            raise ConfigError("\n".join(found))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about an update; None where it can't be known (``notes`` say why)."""

    kl: float | None = None
    """Mean KL(new || old) of a response in nats, estimated on responses of the new policy."""
    moved: bool = True
    """Whether any of the new policy's responses has another probability than under the old one."""
    unseen_new: float | None = None
    """Share of the new policy's responses that lie outside what was logged."""
    unseen_old: float | None = None
    """The same of the old policy's own responses: the yardstick, about 5%."""
    q_gain: Interval | None = None
    """What the Q that was trained on says of its own policy: always flattering, never counted."""
    judge_gain: Interval | None = None
    """Mean over states of (new - old) in the judge's eyes, in the unit of the returns. The interval
    holds the spread over states and the judge's own error."""
    judge_correlation: Interval | None = None
    """Correlation of the judge with returns that it was not fitted to; it is heard if the lower
    end is above 0."""
    first_order: Gain | None = None
    """Gain in J by each action's own ratio (``measure.off_policy.first_order_gain``)."""
    off_policy: Gain | None = None
    """Gain in J by whole conversations (``measure.off_policy.value_gain``)."""
    independent: bool = False
    """Whether the off-policy estimates come from conversations that Q never saw; if not, they are
    flattering as well, and can only speak against the update."""
    confidence: float = 0.95
    """Coverage of each interval."""
    logprob_gap: float | None = None
    """Mean difference of stored and recomputed log-probabilities of a token: above rounding, the
    log was not sampled by the old policy as recorded."""
    never_tried: tuple[str, ...] = ()
    """Up to three of the new policy's responses that lie farthest from the log."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """``states``, ``candidates``, ``judge_conversations``, ``weighed`` conversations and others."""
    notes: tuple[str, ...] = ()
    """Why something is missing."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        out = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name, value in out.items():
            if hasattr(value, "to_dict"):
                out[name] = value.to_dict()
            elif isinstance(value, tuple):
                out[name] = list(value)
        return {**out, "counts": dict(self.counts)}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on an update."""

    verdict: VerdictWord
    """``improved``, ``unchanged`` or ``refused``."""
    why: str
    """The deciding evidence in words."""
    evidence: Evidence
    """All of it."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {"verdict": self.verdict, "why": self.why, "evidence": self.evidence.to_dict()}


def confidence_of_each(confidence: float, sources: int) -> float:
    """Coverage of each of several intervals such that all hold together (Bonferroni).

    >>> round(confidence_of_each(0.95, 3), 4), confidence_of_each(0.95, 0)
    (0.9833, 0.95)
    """
    return 1 - (1 - confidence) / max(1, sources)


def decide(evidence: Evidence, config: VerdictConfig) -> Verdict:
    """The verdict that the evidence allows; guards first, then doubts, then praise."""
    tripped = _guards(evidence, config)
    if tripped:
        return Verdict("refused", "; ".join(tripped), evidence)
    if not evidence.moved:
        return Verdict("unchanged", "the new policy speaks exactly like the old one", evidence)
    speaking = _sources(evidence, config)
    worse = [f"{name} {_told(i)}" for name, i, _ in speaking if i.high < 0]
    if worse:
        return Verdict("refused", "worse: " + "; ".join(worse), evidence)
    better = [f"{name} {_told(i)}" for name, i, fresh in speaking if fresh and i.low > 0]
    if better:
        return Verdict("improved", "better: " + "; ".join(better), evidence)
    if any(fresh for *_, fresh in speaking):
        what = "; ".join(f"{name} {_told(i)}" for name, i, fresh in speaking if fresh)
        return Verdict("unchanged", f"the intervals include 0: {what}", evidence)
    why = _unheard(evidence) or [
        "no evidence that the update did not learn from (q.judge_fraction sets some aside)"
    ]
    return Verdict("unchanged", "; ".join((*why, *evidence.notes)), evidence)


def _guards(evidence: Evidence, config: VerdictConfig) -> list[str]:
    out = []
    kl, outside = evidence.kl, evidence.unseen_new
    if config.max_kl is not None and kl is not None and not kl <= config.max_kl:
        out.append(f"moved by {kl:.3g} nats a response, max_kl is {config.max_kl:g}")
    if config.max_unseen is not None and outside is not None and not outside <= config.max_unseen:
        out.append(
            f"{outside:.0%} of its responses were never tried, max_unseen is "
            f"{config.max_unseen:.0%}"
        )
    return out


def _sources(evidence: Evidence, config: VerdictConfig) -> list[tuple[str, Interval, bool]]:
    """(name, interval, whether the update never saw its data) of every source that may speak."""
    out = []
    known = evidence.judge_correlation
    if evidence.judge_gain is not None and known is not None and known.low > 0:
        out.append(("judge", evidence.judge_gain, True))
    for name, gain in (("first order", evidence.first_order), ("off-policy", evidence.off_policy)):
        if gain is not None and gain.ess >= max(config.min_ess, config.min_ess_share * gain.n):
            out.append((name, gain.gain, evidence.independent))
    return out


def _unheard(evidence: Evidence) -> list[str]:
    """Why what the update did not learn from is not heard."""
    out, known = [], evidence.judge_correlation
    if evidence.judge_gain is not None:
        told = "unknown" if known is None else _told(known)
        out.append(f"the judge is not heard: its correlation with unseen returns is {told}")
    if evidence.independent and evidence.off_policy is not None:
        out.append(
            f"the effective sample of the off-policy estimate is too small: "
            f"{evidence.off_policy.ess:.1f} of {evidence.off_policy.n}"
        )
    return out


def _told(interval: Interval) -> str:
    return f"{interval.mean:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"
