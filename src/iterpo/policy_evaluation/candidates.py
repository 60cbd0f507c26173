"""Candidates: chains of one row each that begin with the same prompt, read from one pass over it.

Improvement scores G responses at every state. Their prompt is the longer part of the tokens by far;
here it runs through the backbone once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iterpo.models.chains import Chain

__all__ = ["Candidates", "candidates", "portions"]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Responses to one prompt."""

    prompt: tuple[int, ...]
    """Token ids that all of them begin with."""
    chains: tuple[Chain, ...]
    """At least two; each has one read, which starts behind the prompt."""


def candidates(chains: Sequence[Chain]) -> tuple[list[Chain], list[Candidates]]:
    """Chains to be read on their own, and those that share a prompt; both in a fixed order.

    >>> from iterpo.models.chains import Read
    >>> pair = [Chain([1, 2, x], [Read((i,), 2, 3)]) for i, x in enumerate((7, 8))]
    >>> alone, shared = candidates([*pair, Chain([1, 3], [Read((2,), 1, 2)])])
    >>> len(alone), [(c.prompt, len(c.chains)) for c in shared]
    (1, [((1, 2), 2)])
    """
    by_prompt: dict[tuple[int, ...], list[Chain]] = {}
    alone = []
    for chain in chains:
        if len(chain.reads) > 1 or chain.reads[0].start == 0:
            alone.append(chain)
        else:
            by_prompt.setdefault(tuple(chain.ids[: chain.reads[0].start]), []).append(chain)
    shared = []
    for prompt, mine in by_prompt.items():
        if len(mine) == 1:
            alone += mine
        else:
            shared.append(Candidates(prompt, tuple(sorted(mine, key=lambda c: c.ids))))
    return alone, sorted(shared, key=lambda c: (len(c.prompt), c.prompt))


def portions(groups: Sequence[Candidates], max_batch_tokens: int) -> list[list[Candidates]]:
    """Groups of similar prompts together, at most ``max_batch_tokens`` cached tokens in a batch.

    A group that is too large by itself is divided. The order depends on the tokens alone.
    """
    out: list[list[Candidates]] = []
    held = 0
    for group in groups:
        longest = max(len(c.ids) for c in group.chains)  # every row has its copy of the cache
        room = max(1, max_batch_tokens // longest)
        for at in range(0, len(group.chains), room):
            part = Candidates(group.prompt, group.chains[at : at + room])
            rows = held + len(part.chains)
            if out and rows * max(longest, _longest(out[-1])) <= max_batch_tokens:
                out[-1].append(part)
                held = rows
            else:
                out.append([part])
                held = len(part.chains)
    return out


def _longest(groups: Sequence[Candidates]) -> int:
    prompt = max(len(g.prompt) for g in groups)
    return prompt + max(len(c.ids) - len(g.prompt) for g in groups for c in g.chains)
