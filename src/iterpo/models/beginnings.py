"""beginnings: which prompts of a batch begin alike, so that what they share need run only once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["beginnings", "same_beginning"]

_LEAST = 16  # tokens saved for which another pass pays


def beginnings(prompts: Sequence[Sequence[int]]) -> Iterator[tuple[int, list[int]]]:
    """Groups of prompts that begin alike, with the number of tokens that each group shares.

    At least one token of each prompt is left over. Whoever is in no group begins like nobody.

    >>> talk = list(range(20))
    >>> list(beginnings([[*talk, 1], [7, 8], [*talk, 2, 2], talk]))
    [(19, [3, 0, 2])]

    Args:
        prompts: Token ids of each prompt, at least one.
    """
    order = sorted(range(len(prompts)), key=lambda i: tuple(prompts[i]))
    group, shared = order[:1], len(prompts[order[0]]) - 1 if order else 0
    for i in order[1:]:
        # Prompts of a group stand side by side, so the last of them begins as they all do.
        common = same_beginning(prompts[group[-1]], prompts[i])
        common = min(common, shared, len(prompts[i]) - 1)
        if common * len(group) - shared * (len(group) - 1) >= _LEAST:
            group.append(i)
            shared = common
            continue
        if len(group) > 1:
            yield shared, group
        group, shared = [i], len(prompts[i]) - 1
    if len(group) > 1:
        yield shared, group


def same_beginning(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of tokens that two sequences have in common from the start.

    >>> same_beginning([1, 2, 3], [1, 2, 4, 3]), same_beginning([1], [1, 2]), same_beginning([], [])
    (2, 1, 0)
    """
    n = min(len(a), len(b))
    if tuple(a[:n]) == tuple(b[:n]):
        return n
    return next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
