"""Corrections: what the round's policy itself makes of explored turns, for the fit of Q.

How likely it finds what a persona said, or what it would have said next.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from iterpo.domain import Conversation, Decision, Response, Sampling, State, decisions, derive
from iterpo.errors import BatchError
from iterpo.measure.off_policy import why_no_ratio
from iterpo.methods.earlier_rounds import own_sampling
from iterpo.methods.likelihood import log_probs
from iterpo.models.backbone import Backbone, logprob_tolerance
from iterpo.models.generation import generate
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.earlier import EarlierRound
from iterpo.policy_evaluation.temporal_difference import Respond

__all__ = ["explored_ratios", "responder"]


def explored_ratios(
    policy: Callable[[], Backbone], conversations: Sequence[Conversation], config: QConfig
) -> EarlierRound | None:
    """What personas said in the round's own log, with the policy's ratios; None where not asked.

    A turn that the policy itself said has a ratio of exactly 1. Conversations in which a draft was
    chosen, or whose draw was not recorded, are left out and counted; of the others all or none are
    taken, since what has a ratio must not depend on what came later.

    Args:
        policy: Loads the policy of the round.
        conversations: Its log.
        config: How Q is fitted.
    """
    explored = [c for c in conversations if c.explored and c.outcome.ending.scored]
    if config.off_policy != "weight" or not explored:
        return None
    at = explored[0].round
    left_out = Counter[str]()
    personas = []
    for c in explored:
        if c.exploration is None or not c.exploration.off_policy:
            left_out["unrecorded"] += 1
        elif c.exploration.chosen:
            left_out["chosen"] += 1
        else:
            personas.append(c)
    if not personas or not config.weighs:
        return EarlierRound(at, left_out=dict(left_out))
    try:
        ratios = _ratios(policy(), conversations, personas)
    except BatchError as error:
        return EarlierRound(at, left_out=dict(left_out), refused=str(error))
    return EarlierRound(at, tuple(personas), ratios, dict(left_out))


def responder(
    policy: Callable[[], Backbone],
    conversations: Sequence[Conversation],
    config: QConfig,
    otherwise: Sampling,
) -> Respond | None:
    """Draws what the policy says at given states, as it was deployed; None where not asked.

    A state that leaves no room for a response gets none.

    Args:
        policy: Loads the policy of the round, when it is first asked.
        conversations: Its log, which tells how it samples.
        config: How many responses, and the root of the draws.
        otherwise: How it samples where the log does not say.
    """
    if config.estimator != "fitted_q":
        return None
    turns = [t for c in conversations if not c.explored for t in c.turns]
    found = Counter(t.sampled.sampling for t in turns if t.sampled)
    sampling = found.most_common(1)[0][0] if found else otherwise

    def respond(states: Sequence[State]) -> list[list[Response]]:
        backbone = policy()
        room = backbone.context_length - sampling.max_new_tokens
        prompts = [backbone.chat.prompt_ids(s.messages) for s in states]
        asked = [
            (i, derive(config.seed, "fitted-q", states[i].conversation_id, states[i].t, k))
            for i, prompt in enumerate(prompts)
            if len(prompt) <= room
            for k in range(config.td_responses)
        ]
        drawn = generate(backbone, [prompts[i] for i, _ in asked], sampling, [s for _, s in asked])
        out: list[list[Response]] = [[] for _ in states]
        for (i, _), said in zip(asked, drawn, strict=True):
            out[i].append(Response(backbone.chat.decode(said.token_ids), said.token_ids))
        return out

    return respond


def _ratios(
    policy: Backbone, conversations: Sequence[Conversation], personas: Sequence[Conversation]
) -> tuple[tuple[float, ...], ...]:
    """Log-ratios, policy over persona, of every action.

    Raises:
        BatchError: if one has no ratio, or if they say that nobody explored.
    """
    sampling = own_sampling(policy, conversations)
    rows = [decisions(c, 1.0) for c in personas]
    said = [row for each in rows for row in each if row.turn.off_policy]
    wrong = next((text for row in said if (text := why_no_ratio(row.turn))), "")
    if wrong:
        raise BatchError(
            f"{wrong}; weights need the log-probabilities of all that personas said, sampled "
            "without a nucleus"
        )
    found = log_probs(
        policy, [r.state for r in said], [r.response for r in said], sampling.temperature
    )
    old = [_logprobs(row) for row in said]
    logs = {
        (r.state.conversation_id, r.state.t): math.fsum(a) - math.fsum(b)
        for r, a, b in zip(said, found, old, strict=True)
    }
    if not all(map(math.isfinite, logs.values())):
        raise BatchError("a log-probability of what a persona said is not finite")
    tokens = sum(map(len, old))
    gap = math.fsum(
        abs(x - y) for a, b in zip(found, old, strict=True) for x, y in zip(a, b, strict=True)
    )
    if tokens and gap / tokens <= logprob_tolerance(policy.dtype):
        raise BatchError(
            "all weights are 1: the policy is as likely as the personas to say what they said, so "
            "they said it without their instruction, or the log holds the policy's log-probs"
        )
    return tuple(
        tuple(logs.get((row.state.conversation_id, row.state.t), 0.0) for row in each)
        for each in rows
    )


def _logprobs(row: Decision) -> tuple[float, ...]:
    return (row.turn.sampled.logprobs or ()) if row.turn.sampled else ()
