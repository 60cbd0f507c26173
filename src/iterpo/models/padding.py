"""pad, distinct, alike: token sequences as batches, of one length or without repeats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

__all__ = ["PaddingSide", "alike", "distinct", "pad"]

_PADDING = 0.1
"""Most padding of a batch of like sequences, as a share of its tokens; 32 tokens always may be."""

PaddingSide = Literal["left", "right"]


def pad(
    sequences: Sequence[Sequence[int]], side: PaddingSide = "right", fill: int = 0
) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, both (b, longest) int64.

    Any id of the vocabulary does as ``fill``: padded positions are masked out and never read.

    >>> pad([[5], [6, 7]], "left")
    (tensor([[0, 5],
            [6, 7]]), tensor([[0, 1],
            [1, 1]]))
    """
    longest = max(map(len, sequences))
    ids = torch.full((len(sequences), longest), fill, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        n = len(sequence)
        place = slice(0, n) if side == "right" else slice(longest - n, longest)
        ids[row, place] = torch.tensor(sequence, dtype=torch.long)
        mask[row, place] = 1
    return ids, mask


def distinct(sequences: Iterable[Sequence[int]]) -> tuple[list[tuple[int, ...]], list[int]]:
    """The different sequences in the order of their first places, and which of them each one is.

    >>> distinct([[5], [6, 7], [5]])
    ([(5,), (6, 7)], [0, 1, 0])
    """
    place: dict[tuple[int, ...], int] = {}
    index = [place.setdefault(tuple(s), len(place)) for s in sequences]
    return list(place), index


def alike(lengths: Sequence[int], most: int | None = None) -> list[list[int]]:
    """Places of sequences in batches of like lengths, the shortest first.

    Args:
        lengths: Tokens of each sequence.
        most: Most tokens of a batch, padding included, where it holds several sequences; None: any.

    >>> alike([40, 10, 41, 11, 39])
    [[1, 3], [4, 0, 2]]
    >>> alike([40, 10, 41, 11, 39], most=82)
    [[1, 3], [4, 0], [2]]
    """
    batches: list[list[int]] = []
    real = 0
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        real += lengths[place]
        padded = (len(batches[-1]) + 1) * lengths[place] if batches else 0
        wasteful = padded - real > max(_PADDING * padded, 32)
        if not batches or (most is not None and padded > most) or wasteful:
            batches.append([])
            real = lengths[place]
        batches[-1].append(place)
    return batches
