"""Numbers: the figures of a state and a response, read from the text for Q's head.

What an offer is worth often hangs on its figures, and hidden states of small models blur them. So
Q may read them beside the hidden states: as they stand in the text, whatever they are about.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import torch
from torch import Tensor

from iterpo.domain import Message, Response, State

__all__ = ["SPREAD", "beside", "columns", "numbers"]

SPREAD = 8.0
"""Standardised, these columns spread so much wider than hidden states, which are many more: equal
steps of the optimiser then reach as far in either. 2 gained half as much, 4 nearly the same."""

_FIGURE = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_LARGEST = 1e12
_OF_INSTRUCTIONS = 4
"""Times as many numbers are read of the instructions, where a whole price list may stand."""


def columns(each: int) -> int:
    """Number of columns that ``numbers`` gives."""
    return each * _OF_INSTRUCTIONS + 3 * (each + 1) + 1 if each else 0


def numbers(states: Sequence[State], responses: Sequence[Response], each: int) -> Tensor:
    """Numbers of each (state, response), (n, columns(each)) fp32.

    In order: the first ``4 * each`` numbers of the first message; of the response, of the other
    side's newest message and of the agent's own the last ``each``, from the right, and how many of
    them there are as a share of ``each``; whether the response's are the other side's again. A
    number x is log(1 + x), so that ratios are differences; a missing one is 0. Signs, units and
    number words are not read; ``1,250.5`` is one number, as is ``1250.5``.

    Args:
        states: n states.
        responses: One for each state.
        each: Numbers of a message; 0: no columns.
    """
    if not each:
        return torch.empty((len(states), 0))
    known: dict[tuple[Message, ...], tuple[list[float], list[float], list[float]]] = {}
    rows = []
    for state, response in zip(states, responses, strict=True):
        if state.messages not in known:
            first, *later = state.messages
            theirs, own = (_newest(later, role)[-each:] for role in ("user", "assistant"))
            instructions = _read(first.content)[: each * _OF_INSTRUCTIONS]
            known[state.messages] = (instructions, theirs, own)
        instructions, theirs, own = known[state.messages]
        said = _read(response.text)[-each:]
        row = instructions + [0.0] * (each * _OF_INSTRUCTIONS - len(instructions))
        for found in (said, theirs, own):
            row += [0.0] * (each - len(found)) + found + [len(found) / each]
        rows.append([*row, float(bool(said) and said == theirs)])
    return torch.tensor(rows, dtype=torch.float32).reshape(len(rows), columns(each))


def beside(
    features: Tensor, states: Sequence[State], responses: Sequence[Response], each: int
) -> Tensor:
    """Features (n, d) with ``numbers`` behind them, (n, d + columns(each)).

    They come back as given where d is 0: no row has a response then, so none has features.
    """
    if not each or not features.shape[1]:
        return features
    return torch.cat([features, numbers(states, responses, each)], dim=1)


def _newest(messages: Sequence[Message], role: str) -> list[float]:
    return next((_read(m.content) for m in reversed(messages) if m.role == role), [])


def _read(text: str) -> list[float]:
    figures = (float(found.replace(",", "")) for found in _FIGURE.findall(text))
    return [math.log1p(min(x, _LARGEST)) for x in figures]
