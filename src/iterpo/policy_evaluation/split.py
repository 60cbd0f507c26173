"""The held-out split: by conversation or kernel, with copies of a conversation kept together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from iterpo.domain import Conversation, action_indices, derive
from iterpo.policy_evaluation.base import QConfig, SplitUnit

__all__ = [
    "content_sha256",
    "hold_out",
    "log_sha256",
    "set_aside",
    "unrelated",
    "why_none_aside",
]

# A stream of its own: with the seed of the health report's split, judge and report would coincide.
_JUDGE = derive("judge")
# What is learnt from fewer is noise, and Q, which could use them, has few itself.
_FEWEST = 8


def content_sha256(conversation: Conversation) -> str:
    """Hash of what was said and shown; the id, kernel, policy and round play no part."""
    said = [[turn.role.value, turn.text] for turn in conversation.turns]
    facts = [conversation.system, conversation.reminder, said]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def log_sha256(conversations: Sequence[Conversation]) -> str:
    """Hash of all that ``set_aside`` looks at, in any order: the same log is split the same way."""
    parts = []
    for c in conversations:
        reward = None if c.outcome.reward is None else float(c.outcome.reward)
        parts.append(json.dumps([content_sha256(c), c.kernel_id, c.outcome.ending.value, reward]))
    parts.sort()
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def hold_out(
    conversations: Sequence[Conversation], fraction: float, unit: SplitUnit, seed: int
) -> frozenset[int]:
    """Indices of the held-out conversations; the others are fitted on.

    The choice depends on the contents and the seed, not on order or ids, so that a copy under
    another id lands on the same side. At least one group is held out where there are two or more
    and ``fraction`` is positive; one always stays to be fitted on.
    """
    if fraction <= 0:
        return frozenset()
    groups = _groups(conversations, unit)
    ordered = sorted(groups, key=lambda key: (derive(seed, "hold-out", key), key))
    wanted = fraction * len(conversations)
    chosen: list[int] = []
    for key in ordered[:-1]:
        if chosen and len(chosen) + len(groups[key]) / 2 > wanted:
            break
        chosen += groups[key]
    return frozenset(chosen)


def set_aside(
    conversations: Sequence[Conversation], config: QConfig
) -> tuple[tuple[Conversation, ...], tuple[Conversation, ...]]:
    """What Q is fitted on, and what only the judge is fitted on (``QConfig.judge_fraction``).

    The choice does not depend on ``config.seed``: whoever fits Q again, with another seed in
    another round, sets the same conversations aside. All are for Q where ``why_none_aside`` has a
    reason.
    """
    own, aside = _parted(conversations, config)
    return (tuple(conversations), ()) if _objection(own, aside, config) else (own, aside)


def why_none_aside(conversations: Sequence[Conversation], config: QConfig) -> str:
    """Why none are set aside though the settings ask for a judge; empty if that is not so."""
    return _objection(*_parted(conversations, config), config)


def unrelated(
    conversations: Sequence[Conversation], to: Sequence[Conversation], unit: SplitUnit
) -> tuple[bool, ...]:
    """Whether each is no copy of one of ``to``, nor (``kernel``) of the same kernel as one."""
    contents = {content_sha256(c) for c in to}
    kernels = {c.kernel_id for c in to} if unit == "kernel" else set()
    return tuple(
        c.kernel_id not in kernels and content_sha256(c) not in contents for c in conversations
    )


def _parted(
    conversations: Sequence[Conversation], config: QConfig
) -> tuple[tuple[Conversation, ...], tuple[Conversation, ...]]:
    chosen = hold_out(conversations, config.judge_fraction, config.split_by, _JUDGE)
    return (
        tuple(c for i, c in enumerate(conversations) if i not in chosen),
        tuple(c for i, c in enumerate(conversations) if i in chosen),
    )


def _objection(own: Sequence[Conversation], aside: Sequence[Conversation], config: QConfig) -> str:
    """Rewards are looked at, not returns: Q and the verdict may differ in the discount."""
    if config.judge_fraction == 0:
        return ""
    if not aside:
        return "all conversations are copies or of one kernel: none can be set aside for a judge"
    left, gone = _rewards(own), _rewards(aside)
    if len(gone) < _FEWEST:
        return (
            f"too few conversations for a judge: judge_fraction {config.judge_fraction:g} sets "
            f"{len(gone)} of {len(left) + len(gone)} aside, and {_FEWEST} or more are needed"
        )
    if len(set(left)) < 2 and len({*left, *gone}) > 1:
        return (
            f"no judge: without the {len(gone)} conversations for it, the {len(left)} others all "
            "have one outcome, and Q could not be fitted"
        )
    return ""


def _rewards(conversations: Sequence[Conversation]) -> list[float | None]:
    """Of those that Q can learn from."""
    return [
        c.outcome.reward
        for c in conversations
        if c.outcome.ending.scored and action_indices(c.turns)
    ]


def _groups(conversations: Sequence[Conversation], unit: SplitUnit) -> dict[str, list[int]]:
    """Connected conversations by a key of their own: same content, or (``kernel``) same kernel."""
    leader: dict[str, str] = {}

    def find(key: str) -> str:
        while leader.setdefault(key, key) != key:
            key = leader[key]
        return key

    keys = [f"content:{content_sha256(c)}" for c in conversations]
    if unit == "kernel":
        for key, conversation in zip(keys, conversations, strict=True):
            ends = sorted((find(key), find(f"kernel:{conversation.kernel_id}")))
            leader[ends[1]] = ends[0]
    groups: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(find(key), []).append(i)
    return groups
