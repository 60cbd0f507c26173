"""The agent-token mask of a conversation, and its proof.

A mask is a set of spans, one per supervised agent turn; no token id is ever compared to build one
(a pad token may be the stop token, and a stop token may occur inside a prompt).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iterpo.errors import TemplateError

__all__ = ["ConversationIds", "mask_of", "prove"]


@dataclass(frozen=True, slots=True)
class ConversationIds:
    """A whole conversation as ids, with the agent's tokens marked."""

    ids: tuple[int, ...]
    """Token ids, length n."""
    mask: tuple[bool, ...]
    """True on supervised tokens, length n."""
    spans: tuple[tuple[int, int], ...]
    """Half-open range of ids per supervised agent turn, stop token included."""


def mask_of(n: int, spans: Sequence[tuple[int, int]]) -> tuple[bool, ...]:
    """The mask of length ``n`` that is True inside the spans.

    >>> mask_of(4, [(1, 3)])
    (False, True, True, False)
    """
    mask = [False] * n
    for start, end in spans:
        mask[start:end] = [True] * (end - start)
    return tuple(mask)


def prove(
    row: ConversationIds,
    targets: Sequence[Sequence[int]],
    stop_ids: Sequence[int],
    *,
    where: str,
) -> None:
    """Check a masked row against the responses that it is to supervise.

    Args:
        row: The row.
        targets: Ids of each supervised response, in order.
        stop_ids: Ids that end an agent turn.
        where: Name of row and template for error messages.

    Raises:
        TemplateError: if nothing is supervised, a stop token falls outside the mask, or mask and
            responses differ in place or number.
    """
    if len(row.mask) != len(row.ids) or len(row.spans) != len(targets):
        raise TemplateError(
            f"{where}: {len(row.mask)} mask entries for {len(row.ids)} ids, "
            f"{len(row.spans)} spans for {len(targets)} agent turns"
        )
    if not any(row.mask):
        raise TemplateError(f"{where}: no supervised token; nothing would be learned")
    for k, ((start, end), target) in enumerate(zip(row.spans, targets, strict=True), start=1):
        if list(row.ids[start:end]) != list(target):
            raise TemplateError(f"{where}: span {k} does not hold the response's own tokens")
        if target and target[-1] in stop_ids and not row.mask[end - 1]:
            raise TemplateError(
                f"{where}: the stop token of agent turn {k} is outside the mask; the model would "
                "never learn to stop"
            )
        if not all(row.mask[start:end]):
            raise TemplateError(
                f"{where}: the mask covers {sum(row.mask[start:end])} of {len(target)} tokens of "
                f"agent turn {k} (off by one?)"
            )
    expected = sum(map(len, targets))
    if sum(row.mask) != expected:
        raise TemplateError(
            f"{where}: {sum(row.mask)} supervised tokens, but the responses have {expected} "
            "(off by one?)"
        )
