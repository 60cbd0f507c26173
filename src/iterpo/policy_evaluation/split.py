"""The held-out split: by conversation or kernel, with copies of a conversation kept together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from iterpo.domain import Conversation, derive
from iterpo.policy_evaluation.base import QConfig, SplitUnit

__all__ = ["content_sha256", "hold_out", "set_aside", "unrelated"]

# A stream of its own: with the seed of the health report's split, judge and report would coincide.
_JUDGE = derive("judge")


def content_sha256(conversation: Conversation) -> str:
    """Hash of what was said and shown; the id, kernel, policy and round play no part."""
    said = [[turn.role.value, turn.text] for turn in conversation.turns]
    facts = [conversation.system, conversation.reminder, said]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


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
    another round, sets the same conversations aside.
    """
    chosen = hold_out(conversations, config.judge_fraction, config.split_by, _JUDGE)
    return (
        tuple(c for i, c in enumerate(conversations) if i not in chosen),
        tuple(c for i, c in enumerate(conversations) if i in chosen),
    )


def unrelated(
    conversations: Sequence[Conversation], to: Sequence[Conversation], unit: SplitUnit
) -> tuple[bool, ...]:
    """Whether each is no copy of one of ``to``, nor (``kernel``) of the same kernel as one."""
    contents = {content_sha256(c) for c in to}
    kernels = {c.kernel_id for c in to} if unit == "kernel" else set()
    return tuple(
        c.kernel_id not in kernels and content_sha256(c) not in contents for c in conversations
    )


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
