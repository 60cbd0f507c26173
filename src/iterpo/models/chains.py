"""Chains: rows of one conversation that one forward pass can read together.

A causal model's hidden state at a token depends on the tokens before it only. So while the prompt
and response of turn t are, as token ids, the beginning of the prompt of turn t + 1, one pass over
the last turn passes through the end of every earlier one. Where they are not (a reminder line that
moves on, a template that rewrites history), the row starts a pass of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Chain", "Read", "TokenRow", "batches", "chain_rows"]


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One (state, response) pair as token ids."""

    group: str
    """Conversation; only rows of one group are chained."""
    t: int
    """Index of the agent turn; rows are chained in this order."""
    prompt: Sequence[int]
    """Rendered state."""
    response: Sequence[int]
    """Response, at least one token."""


@dataclass(frozen=True, slots=True)
class Read:
    """Where a row's response lies in its chain's tokens."""

    rows: tuple[int, ...]
    """Indices of the rows with exactly these tokens (copies share one read)."""
    start: int
    """Index of the response's first token."""
    end: int
    """One past the response's last token."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The tokens of one forward pass and what is read from it."""

    ids: list[int]
    """Token ids: the prompt and response of the last row."""
    reads: list[Read]
    """One for each different row, in order of their position."""


def chain_rows(rows: Sequence[TokenRow]) -> list[Chain]:
    """Cover all rows by as few forward passes as the prefix property allows.

    >>> first = TokenRow("c", 1, [1, 2], [3])
    >>> [len(chain_rows([first, TokenRow("c", 2, p, [5])])) for p in ([1, 2, 3, 4], [9, 9, 9, 9])]
    [1, 2]
    """
    copies: dict[tuple[str, tuple[int, ...], int], list[int]] = {}
    for index, row in enumerate(rows):
        ids = (*row.prompt, *row.response)
        copies.setdefault((row.group, ids, len(row.prompt)), []).append(index)
    chains: dict[str, list[Chain]] = {}
    for (group, ids, start), same in sorted(
        copies.items(), key=lambda item: (item[0][0], rows[item[1][0]].t, item[1][0])
    ):
        read = Read(tuple(same), start, len(ids))
        mine = chains.setdefault(group, [])
        host = max(
            (c for c in mine if len(c.ids) <= start and _begins(ids, c.ids)),
            key=lambda c: len(c.ids),
            default=None,
        )
        if host is None:
            mine.append(Chain(list(ids), [read]))
        else:
            host.ids.extend(ids[len(host.ids) :])
            host.reads.append(read)
    return [chain for group in chains.values() for chain in group]


def batches(chains: Sequence[Chain], max_batch_tokens: int) -> list[list[Chain]]:
    """Chains of similar length together, at most ``max_batch_tokens`` padded tokens in a batch.

    The order depends on the tokens alone, so the same rows always meet in the same batches.
    """
    out: list[list[Chain]] = []
    for chain in sorted(chains, key=lambda c: (len(c.ids), c.ids)):
        if out and (len(out[-1]) + 1) * len(chain.ids) <= max_batch_tokens:
            out[-1].append(chain)
        else:
            out.append([chain])
    return out


def _begins(ids: tuple[int, ...], prefix: list[int]) -> bool:
    # Most candidates fail at the last token already; comparing all of them costs more.
    n = len(prefix)
    return ids[n - 1] == prefix[-1] and list(ids[:n]) == prefix
