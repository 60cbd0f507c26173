r"""What a step's responses look like as text: repetition, boxes and amounts, for any game.

The only convention known here is that of the prompts: what a message commits to stands in
``\boxed{...}``. A policy that drifts off shows it here before its reward does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from iterpo.domain import Response, State

__all__ = ["boxes", "miscopied", "numbers", "repeated_share", "text_monitors"]

_OPEN = re.compile(r"\\boxed\s*\{")
_NUMBER = re.compile(r"[0-9]+(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?")
_GRAM = 3


def text_monitors(states: Sequence[State], responses: Sequence[Response]) -> dict[str, float]:
    """Shares over the responses of a step; a share of nothing is left out.

    Returns:
        ``repeated_ngrams``: mean share of a response's trigrams of tokens that it had used before.
        ``box_rate``: share of the responses with a complete box.
        ``miscopied``: share of the responses with a number in a box, in which one of those numbers
        stands neither in the prompt nor in the words around the boxes.
    """
    repeated = [repeated_share(r.token_ids or tuple(r.text.split())) for r in responses]
    found = [boxes(r.text) for r in responses]
    prompts = {id(s): s.messages for s in states}  # one for all candidates of a state
    known = {
        key: frozenset(numbers(" ".join(m.content for m in messages)))
        for key, messages in prompts.items()
    }
    wrong = [miscopied(r.text, known[id(s)]) for s, r in zip(states, responses, strict=True)]
    told = [w for w in wrong if w is not None]
    shares: dict[str, Sequence[float]] = {
        "repeated_ngrams": repeated,
        "box_rate": [bool(f) for f in found],
        "miscopied": told,
    }
    return {name: sum(values) / len(values) for name, values in shares.items() if values}


def repeated_share(tokens: Sequence[int] | Sequence[str]) -> float:
    """Share of the trigrams that occurred before in the same response.

    >>> repeated_share("a b c d".split()), repeated_share("a b a b a b".split())
    (0.0, 0.5)
    """
    grams = [tuple(tokens[i : i + _GRAM]) for i in range(len(tokens) - _GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def boxes(text: str) -> list[tuple[int, int]]:
    r"""Where the complete boxes stand, as (start, end); one that is never closed is none.

    >>> boxes(r"\boxed{5} or \boxed{6")
    [(0, 9)]
    """
    found = []
    position = 0
    while opened := _OPEN.search(text, position):
        depth, end = 1, opened.end()
        while end < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if depth:  # never closed; a later opening may be
            position = opened.end()
            continue
        found.append((opened.start(), end))
        position = end
    return found


def numbers(text: str) -> set[Decimal]:
    """The numbers of a text by value.

    >>> sorted(map(str, numbers("$5,000.00, or 1,2 and 30 percent")))
    ['1', '2', '30', '5000.00']
    >>> numbers("5,000") == numbers("5000.0")
    True
    """
    return {Decimal(n.replace(",", "")) for n in _NUMBER.findall(text)}


def miscopied(text: str, known: frozenset[Decimal]) -> bool | None:
    """Whether a box holds a number that neither the prompt nor the rest of the message has.

    Args:
        text: The response.
        known: Numbers of the prompt.

    Returns:
        None where no box holds a number.
    """
    spans = boxes(text)
    inside = set().union(*(numbers(text[a:b]) for a, b in spans)) if spans else set()
    if not inside:
        return None
    ends = [0, *(b for _, b in spans)]
    starts = [*(a for a, _ in spans), len(text)]
    around = numbers(" ".join(text[b:a] for b, a in zip(ends, starts, strict=True)))
    return not inside <= known | around
