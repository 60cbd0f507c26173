"""pad, distinct: token sequences as a batch, of one length or without repeats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

__all__ = ["PaddingSide", "distinct", "pad"]

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
