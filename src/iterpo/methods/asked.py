"""Asked and heard: what two policies are asked about an update, and what each of them says.

One policy is in memory at a time. All choices are made by hashes, so the same update always asks
the same, also after an interruption.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from iterpo.domain import (
    Conversation,
    Decision,
    Response,
    Sampling,
    State,
    action_indices,
    decisions,
    derive,
)
from iterpo.errors import BatchError
from iterpo.measure.off_policy import logged_log_probs
from iterpo.methods.likelihood import log_probs
from iterpo.methods.verdict import VerdictConfig
from iterpo.models.backbone import Backbone
from iterpo.models.generation import generate
from iterpo.policy_evaluation.base import QConfig

__all__ = ["Asked", "Heard", "Spoken", "ask", "listen", "speak"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What both policies are asked."""

    rows: tuple[Decision, ...]
    """Logged states at which they speak."""
    logged: tuple[Decision, ...]
    """Logged rows that coverage and the judge's fit are measured on; the judge never saw them."""
    weighed: tuple[Conversation, ...]
    """Conversations to be weighed anew, all sampled in the same way."""
    silent: tuple[Conversation, ...]
    """Conversations without an agent action: worth the same under any policy."""
    independent: bool
    """Whether Q never saw ``weighed``."""
    sampling: Sampling
    """How candidates are drawn: as the log was."""
    candidates: int
    """Candidates at each state."""
    q: QConfig
    """Discount, and the root of the random draws."""
    counts: dict[str, int]
    """How many there are, and how many were left out."""
    notes: tuple[str, ...]
    """Why something is missing."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a policy says."""

    states: list[State]
    """The states, each as often as there are candidates."""
    said: list[Response]
    """One response for each."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a policy says, and how likely it finds that and the log."""

    spoken: Spoken
    """What it says."""
    own: list[tuple[float, ...]]
    """log-probs of the tokens of what it says."""
    logged: list[tuple[float, ...]]
    """log-probs of the tokens of every agent action in ``weighed``, one after the other."""


def ask(
    own: Sequence[Conversation],
    aside: Sequence[Conversation],
    config: VerdictConfig,
    q: QConfig,
    otherwise: Sampling,
) -> Asked:
    """Choose states and conversations.

    Args:
        own: Conversations that Q was fitted on.
        aside: Those that it never saw; may be empty.
        config: How many.
        q: Discount, and the seed of the draws.
        otherwise: How to draw candidates where the log does not say how it was sampled.

    Raises:
        BatchError: if no logged state is left to speak at.
    """
    plain = _some([c for c in own if c.outcome.ending.scored and not c.explored], len(own))
    rows = [d for c in plain for d in decisions(c, q.gamma, q.discount_unit)]
    if not rows:
        raise BatchError("no logged state without exploration is left to compare policies at")
    rows.sort(key=lambda d: derive("verdict", d.state.conversation_id, d.state.t))
    drawn = Counter(d.turn.sampled.sampling for d in rows if d.turn.sampled)
    sampling = drawn.most_common(1)[0][0] if drawn else otherwise
    few = {c.id for c in plain[: max(config.conversations, 1)]}
    pool = [c for c in (aside or own) if c.outcome.ending.scored and not c.explored]
    usable, silent, refused = _usable(pool, sampling)
    if usable and refused:
        # Those left would be a selection, e.g. of what ended before the turn that can't be weighed.
        n = len(usable) + len(refused)
        usable, why = [], f"{len(refused)} of {n} carry no ratio, so none is weighed: {refused[0]}"
        refused[0] = why
    weighed = _some(usable, config.conversations)
    share = len(weighed) / len(usable) if usable else 0.0
    return Asked(
        rows=tuple(rows[: config.states]),
        logged=tuple(sorted((d for d in rows if d.state.conversation_id in few), key=_place)),
        weighed=weighed,
        silent=_some(silent, round(share * len(silent))),
        independent=bool(aside),
        sampling=sampling,
        candidates=config.candidates,
        q=q,
        counts={"not_weighable": len(refused)},
        notes=tuple(refused[:1]),
    )


def speak(policy: Backbone, asked: Asked) -> Spoken:
    """Let a policy speak at the states; it must not be training."""
    room = policy.context_length - asked.sampling.max_new_tokens
    states, prompts, seeds = [], [], []
    for row in asked.rows:
        prompt = policy.chat.prompt_ids(row.state.messages)
        if len(prompt) > room:
            continue
        for k in range(asked.candidates):
            states.append(row.state)
            prompts.append(prompt)
            # Not the policy's name: both draw with the same numbers, so that only what differs
            # between them shows.
            name = (row.state.conversation_id, row.state.t, k)
            seeds.append(derive(asked.q.seed, "verdict", *name))
    drawn = generate(policy, prompts, asked.sampling, seeds)
    said = [Response(policy.chat.decode(g.token_ids), g.token_ids) for g in drawn]
    return Spoken(states, said)


def listen(policy: Backbone, asked: Asked) -> Heard:
    """Let a policy speak, and judge what it said and the logged responses."""
    spoken, temperature = speak(policy, asked), asked.sampling.temperature or 1.0
    rows = [d for c in asked.weighed for d in decisions(c, 1.0)]
    return Heard(
        spoken,
        log_probs(policy, spoken.states, spoken.said, temperature),
        log_probs(policy, [d.state for d in rows], [d.response for d in rows], temperature),
    )


def _place(row: Decision) -> tuple[str, int]:
    return row.state.conversation_id, row.state.t


def _some(conversations: Sequence[Conversation], n: int) -> tuple[Conversation, ...]:
    """At most ``n`` of them, whichever order they come in."""
    return tuple(sorted(conversations, key=lambda c: (derive("verdict", c.id), c.id))[:n])


def _usable(
    pool: Sequence[Conversation], sampling: Sampling
) -> tuple[list[Conversation], list[Conversation], list[str]]:
    """Conversations that carry a ratio, those without an action, and why others don't."""
    usable, silent, refused = [], [], []
    for c in pool:
        if not action_indices(c.turns):
            silent.append(c)
            continue
        try:
            if logged_log_probs(c)[0] != sampling:
                raise BatchError(f"conversation {c.id!r} was sampled in another way than most")
        except BatchError as error:
            refused.append(str(error))
        else:
            usable.append(c)
    return usable, silent, refused
