"""Evidence on an update: what a log, a judge and two policies say of each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from iterpo.domain import (
    DiscountUnit,
    action_indices,
    discounted_return,
)
from iterpo.errors import BatchError
from iterpo.measure.off_policy import Reweighed, first_order_gain, reweighed, value_gain
from iterpo.methods.asked import Asked, Heard, Spoken, speak
from iterpo.methods.judge import Judge, mean_gain
from iterpo.methods.likelihood import log_probs, stored_gap
from iterpo.methods.verdict import Evidence, VerdictConfig, confidence_of_each
from iterpo.models.backbone import Backbone, logprob_tolerance
from iterpo.policy_evaluation.coverage import nearest_logged, unseen
from iterpo.policy_evaluation.features import features
from iterpo.policy_evaluation.qfunction import QFunction

__all__ = ["weigh"]

_SHOWN = 3
_SHOWN_CHARACTERS = 160


def weigh(
    old: Backbone,
    asked: Asked,
    heard: Heard,
    fitted: tuple[QFunction | None, Judge | None],
    config: VerdictConfig,
) -> Evidence:
    """Put the evidence together, with the old policy in memory.

    Args:
        old: The policy that the update started from.
        asked: What was asked.
        heard: From the new policy.
        fitted: The Q that was trained on, and the judge.
        config: Confidence.
    """
    new, before = heard.spoken, speak(old, asked)
    under_old = log_probs(old, new.states, new.said, asked.sampling.temperature or 1.0)
    q, judge = fitted
    # Coverage is told in features that no return has shaped, and the judge has no others.
    readers = [f.backbone for f in (judge.q if judge else None, q) if f is not None]
    frozen = next((b for b in readers if b.critic is None), old)
    read = _read(frozen, asked, new, before)
    tuned = q is not None and q.backbone.critic is not None
    of_q = _read(q.backbone, asked, new, before) if q is not None and tuned else read
    gap = _gap(old, asked)
    off_policy = bool(asked.weighed) and gap is not None and gap <= logprob_tolerance(old.dtype)
    each = confidence_of_each(config.confidence, (judge is not None) + 2 * off_policy)
    found = Evidence(
        kl=_kl(heard.own, under_old),
        moved=_moved(heard.own, under_old),
        q_gain=None if q is None else mean_gain(q, new.states, of_q, each),
        judge_gain=None if judge is None else judge.gain(new.states, read, each),
        judge_correlation=(
            None if judge is None else judge.correlation(asked.logged, read[2], each)
        ),
        independent=asked.independent,
        logprob_gap=gap,
        confidence=each,
        counts={
            **asked.counts,
            "states": len(new.states) // asked.candidates,
            "candidates": len(new.said),
            "weighed": len(asked.weighed) + len(asked.silent),
        },
        notes=asked.notes,
    )
    found = _with_coverage(found, asked, new, before, read)
    if asked.weighed and not off_policy:
        told = f"stored log-probabilities differ from the old policy's by {gap} a token on average"
        return replace(found, notes=(*found.notes, told))
    return _with_off_policy(found, asked, heard.logged) if off_policy else found


def _read(reader: Backbone, asked: Asked, new: Spoken, old: Spoken) -> list[torch.Tensor]:
    """Features of the new candidates, the old ones and the logged responses, as Q reads them."""
    logged = ([d.state for d in asked.logged], [d.response for d in asked.logged])
    return [
        features(
            reader,
            states,
            responses,
            pooling=asked.q.pooling,
            numbers=asked.q.numbers,
            max_batch_tokens=asked.q.max_batch_tokens,
        )
        for states, responses in ((new.states, new.said), (old.states, old.said), logged)
    ]


def _kl(new: Sequence[Sequence[float]], old: Sequence[Sequence[float]]) -> float:
    """KL(new || old) of a response, by sum of exp(x) - 1 - x with x = log old - log new."""
    each = [
        math.fsum(math.expm1(min(b - a, 500.0)) - (b - a) for a, b in zip(x, y, strict=True))
        for x, y in zip(new, old, strict=True)
    ]
    return math.fsum(each) / len(each) if each else 0.0


def _moved(new: Sequence[Sequence[float]], old: Sequence[Sequence[float]]) -> bool:
    pairs = [(a, b) for x, y in zip(new, old, strict=True) for a, b in zip(x, y, strict=True)]
    return not pairs or any(abs(a - b) > 1e-6 for a, b in pairs)


def _gap(old: Backbone, asked: Asked) -> float | None:
    return stored_gap(old, asked.weighed, asked.sampling.temperature or 1.0)


def _with_coverage(
    found: Evidence, asked: Asked, new: Spoken, old: Spoken, read: Sequence[torch.Tensor]
) -> Evidence:
    """Shares of responses outside the log, and those farthest from it."""
    names = [[s.conversation_id for s in spoken.states] for spoken in (new, old)]
    names.append([d.state.conversation_id for d in asked.logged])
    known = [torch.isfinite(r).all(dim=1) & (r.shape[1] > 0) for r in read]
    if not all(bool(k.any()) for k in known):
        return replace(found, notes=(*found.notes, "a policy said nothing that has features"))
    rows = [r[k] for r, k in zip(read, known, strict=True)]
    groups = [_only(n, k) for n, k in zip(names, known, strict=True)]
    outside = [unseen(rows[i], groups[i], rows[2], groups[2]) for i in (0, 1)]
    distances = nearest_logged(rows[0], groups[0], rows[2], groups[2])
    order = torch.argsort(distances, descending=True, stable=True).tolist()
    texts = _only([r.text for r in new.said], known[0])
    far = dict.fromkeys(texts[i][:_SHOWN_CHARACTERS] for i in order if outside[0][i])
    return replace(
        found,
        unseen_new=float(outside[0].float().mean()),
        unseen_old=float(outside[1].float().mean()),
        never_tried=tuple(far)[:_SHOWN],
    )


def _only(values: Sequence[str], mask: torch.Tensor) -> list[str]:
    return [v for v, keep in zip(values, mask.tolist(), strict=True) if keep]


def _with_off_policy(
    found: Evidence, asked: Asked, tokens: Sequence[tuple[float, ...]]
) -> Evidence:
    unit: DiscountUnit = asked.q.discount_unit
    logged, at = [], 0
    for c in asked.weighed:
        n = len(action_indices(c.turns))
        new = [math.fsum(t) for t in tokens[at : at + n]]
        at += n
        logged.append(reweighed(c, new, asked.q.gamma, unit))
    for c in asked.silent:
        ret = discounted_return(c, asked.q.gamma, unit)
        logged.append(Reweighed(c.kernel_id, (0.0,), (ret,)))
    try:
        return replace(
            found,
            first_order=first_order_gain(logged, confidence=found.confidence),
            off_policy=value_gain(logged, confidence=found.confidence, seed=asked.q.seed),
        )
    except BatchError as error:
        return replace(found, notes=(*found.notes, str(error)))
