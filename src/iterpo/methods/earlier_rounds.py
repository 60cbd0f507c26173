"""earlier_rounds: how likely this round's policy finds what earlier policies said.

A round is taken as a whole or not at all: if only the conversations without a ratio were left
out, those that ended before the turn that has none would stay, and their returns are not those of
conversations that go on. Explored ones may be left out, where they were drawn beforehand.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from iterpo.domain import Conversation, Sampling, action_indices, decisions
from iterpo.errors import BatchError
from iterpo.measure.off_policy import logged_log_probs
from iterpo.methods.base import RoundBatch
from iterpo.methods.likelihood import log_probs, stored_gap
from iterpo.models.backbone import Backbone, logprob_tolerance
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.earlier import EarlierRound
from iterpo.policy_evaluation.split import unrelated

__all__ = ["earlier_rounds", "own_sampling"]


def earlier_rounds(
    policy: Callable[[], Backbone],
    batch: RoundBatch,
    aside: Sequence[Conversation],
    config: QConfig,
) -> tuple[EarlierRound, ...]:
    """The latest ``config.pool_rounds`` logs of other policies, with the ratios of all actions.

    Args:
        policy: Loads the policy of the round; not called where no ratio is needed (gamma 0, or
            fitted Q evaluation).
        batch: The round's log and the earlier ones.
        aside: Conversations of the round whose returns Q must not see, not even as copies.
        config: How Q is fitted.
    """
    logs = [log for log in batch.earlier if log][-config.pool_rounds :]
    if config.pool_rounds == 0 or not logs:
        return ()
    if not config.weighs:
        return tuple(_unweighed(log, aside, config) for log in logs)
    backbone = policy()
    try:
        sampling = own_sampling(backbone, batch.conversations)
    except BatchError as error:
        return tuple(EarlierRound(log[0].round, refused=str(error)) for log in logs)
    return tuple(_weighed(backbone, sampling, log, aside, config) for log in logs)


def own_sampling(policy: Backbone, conversations: Sequence[Conversation]) -> Sampling:
    """How the policy speaks, after checking that it is as likely to as its log says.

    Raises:
        BatchError: if its log carries no ratio, or the log-probs in it are not the policy's.
    """
    spoken = [
        c
        for c in conversations
        if c.outcome.ending.scored and not c.explored and action_indices(c.turns)
    ]
    found = Counter(logged_log_probs(c)[0] for c in spoken)
    if len(found) != 1:
        raise BatchError(
            f"the round's own log holds {len(found)} ways of sampling, explored conversations "
            "left out; exactly one is needed to say what its policy would have done"
        )
    sampling = next(iter(found))
    gap = stored_gap(policy, spoken, sampling.temperature)
    if gap is not None and not gap <= logprob_tolerance(policy.dtype):
        raise BatchError(
            f"log-probabilities that are stored in the round's own log differ from the policy's "
            f"by {gap:.3g} a token on average: another policy or other settings sampled it"
        )
    return sampling


def _eligible(
    log: Sequence[Conversation], aside: Sequence[Conversation], config: QConfig
) -> tuple[list[Conversation], Counter[str]]:
    """Scored conversations with an action that tell nothing of ``aside``, and the other counts."""
    apart = unrelated(log, aside, config.split_by)
    kept, left_out = [], Counter[str]()
    for c, fresh in zip(log, apart, strict=True):
        if not c.outcome.ending.scored:
            left_out[c.outcome.ending.value] += 1
        elif not action_indices(c.turns):
            left_out["without_action"] += 1
        elif not fresh:
            left_out["set_aside"] += 1
        else:
            kept.append(c)
    return kept, left_out


def _unweighed(
    log: Sequence[Conversation], aside: Sequence[Conversation], config: QConfig
) -> EarlierRound:
    kept, left_out = _eligible(log, aside, config)
    ratios = tuple((0.0,) * len(action_indices(c.turns)) for c in kept)
    return EarlierRound(log[0].round, tuple(kept), ratios, dict(left_out))


def _weighed(
    policy: Backbone,
    sampling: Sampling,
    log: Sequence[Conversation],
    aside: Sequence[Conversation],
    config: QConfig,
) -> EarlierRound:
    kept, left_out = _eligible(log, aside, config)
    plain = [c for c in kept if not c.explored]
    left_out["explored"] = len(kept) - len(plain)
    try:
        said = [_said(c, sampling) for c in plain]
        _refuse_unrecorded(kept)
        rows = [d for c in plain for d in decisions(c, config.gamma, config.discount_unit)]
        found = log_probs(
            policy, [d.state for d in rows], [d.response for d in rows], sampling.temperature
        )
    except BatchError as error:
        return EarlierRound(log[0].round, left_out=dict(left_out), refused=str(error))
    sums = iter([math.fsum(tokens) for tokens in found])
    ratios = tuple(tuple(next(sums) - old for old in each) for each in said)
    if not all(math.isfinite(x) for each in ratios for x in each):
        return EarlierRound(log[0].round, refused="a log-probability in it is not finite")
    return EarlierRound(log[0].round, tuple(plain), ratios, dict(left_out))


def _said(conversation: Conversation, sampling: Sampling) -> tuple[float, ...]:
    found, log_probs_ = logged_log_probs(conversation)
    if found != sampling:
        raise BatchError(
            f"conversation {conversation.id!r} was sampled with {found}, but this round with "
            f"{sampling}: sample all rounds alike"
        )
    return log_probs_


def _refuse_unrecorded(conversations: Sequence[Conversation]) -> None:
    """Marked turns without a record of the draw: what came first decided which were marked."""
    unrecorded = [c for c in conversations if c.explored and c.exploration is None]
    if unrecorded:
        raise BatchError(
            f"{len(unrecorded)} conversations (first: {unrecorded[0].id!r}) hold explored turns, "
            "but no record of the draw: leaving them out would choose by what was said"
        )
