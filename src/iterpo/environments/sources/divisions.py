"""Deal or No Deal (Lewis et al. 2017, CC BY-NC 4.0): pools to divide, from its files or a hub.

``train.txt``, ``val.txt``, ``test.txt``, one line per dialogue view, or the same rows in the hub's
layout; only the two inputs are used, as the same scenario appears in several rows.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iterpo.environments.sources.files import LoadReport, Parsed, file_reader
from iterpo.environments.sources.hub import hub_rows
from iterpo.errors import DataError

__all__ = [
    "Division",
    "hub_divisions",
    "read_divisions",
    "unordered",
    "without_shared",
]

HUB_ID = "mikelewis0/deal_or_no_dialog"
HUB_FIELDS = ("input", "dialogue", "output", "partner_input")
PUBLISHED = {
    "test.txt": "37be3150bf656195b61a7547b45cf307acce929f2a8140036890a561c3597c83",
    "train.txt": "aa278f06765463a5767055e1a544d922b39a9bb78f586f85513bf99f74aa2300",
    "val.txt": "5ad7df00b8bc4b1fff565cb4dc38b23afc7874c496b0ed2e1c58c232326ff996",
}
"""SHA-256 of the published files."""

_ROW = re.compile(
    r"\s*<input>(?P<you>[ 0-9]+)</input>.*<partner_input>(?P<them>[ 0-9]+)</partner_input>\s*",
    re.DOTALL,
)
_DIALOGUE = re.compile(r"<dialogue>(.*)</dialogue>", re.DOTALL)
_OUTPUT = re.compile(r"<output>(.*)</output>", re.DOTALL)
_ODD_OUTPUTS = ("<disagree>", "<no_agreement>", "<disconnect>")


@dataclass(frozen=True, slots=True)
class Division:
    """A pool to divide and what each side makes of it; items in the order book, hat, ball."""

    counts: tuple[int, ...]
    """Number of each item in the pool."""
    you: tuple[int, ...]
    """Value per item for the first side."""
    them: tuple[int, ...]
    """Value per item for the second side."""


def unordered(division: Division) -> tuple[tuple[int, ...], ...]:
    """Identity of a scenario, whichever side is which.

    >>> one = Division((1, 1, 3), (1, 0, 3), (4, 3, 1))
    >>> unordered(one) == unordered(Division((1, 1, 3), (4, 3, 1), (1, 0, 3)))
    True
    """
    return (division.counts, *sorted((division.you, division.them)))


def read_divisions(path: Path) -> Parsed[Division]:
    """Scenarios of one Deal or No Deal file in order of first appearance, duplicates dropped.

    The two orders of a scenario (whose values come first) are both kept where both occur. A file
    named ``*.jsonl`` is read in the hub's layout, any other as the published text.

    Raises:
        DataError: if rows break the format or its promises (equal counts on both sides, each
            side's total 10, 5 to 7 items); the message names the first of them.
    """
    return _reader(path)


def _parsed(path: Path, text: str) -> Parsed[Division]:
    read = _json_row if path.suffix == ".jsonl" else _text_row
    numbered = enumerate(text.split("\n"), start=1)
    rows = ((f"line {n}", read(line)) for n, line in numbered if line.strip())
    return _gathered(str(path), rows)


_reader = file_reader(_parsed, PUBLISHED)


def hub_divisions(split: str) -> Parsed[Division]:
    """The same from the published copy on a hub.

    Args:
        split: ``train``, ``validation`` or ``test``.

    Raises:
        MissingDataError: if the hub can't be reached.
        DataError: as ``read_divisions``.
    """
    rows = hub_rows(HUB_ID, split, HUB_FIELDS, config="dialogues")
    numbered = enumerate(rows, start=1)
    return _gathered(f"{HUB_ID}, split {split}", ((f"row {n}", _hub_row(r)) for n, r in numbered))


def _gathered(origin: str, rows: Iterable[tuple[str, _Row | str]]) -> Parsed[Division]:
    seen: dict[Division, None] = {}
    views: Counter[tuple[object, ...]] = Counter()
    odd: Counter[str] = Counter()
    wrong: list[str] = []
    total = 0
    for where, row in rows:
        total += 1
        problem = row if isinstance(row, str) else _problem(row)
        if isinstance(row, str) or problem:
            wrong.append(f"{where}: {problem}")
            continue
        division = Division(row.you[::2], row.you[1::2], row.them[1::2])
        odd.update(_oddities(division, row))
        seen.setdefault(division)
        views[unordered(division), _words(row.dialogue)] += 1
    if wrong or not total:
        raise DataError(
            f"{origin} is not in the native Deal or No Deal format: "
            f"{len(wrong)} of {total} rows are wrong ({'; '.join(wrong[:3]) or 'it is empty'}). "
            "Get the file again; its rows look like '<input> 2 1 1 4 2 2 </input> … "
            "<partner_input> 2 2 1 0 2 3 </partner_input>', or in the hub's layout like "
            '{"input": {"count": [2, 1, 2], "value": [1, 4, 2]}, …, "partner_input": {…}}'
        )
    odd["mirrored_pairs"] = sum(n // 2 for n in views.values())
    odd["single_rows"] = sum(n % 2 for n in views.values())
    odd["duplicate_rows"] = total - len(seen)
    odd["ordered_scenarios"] = len(seen)
    scenarios = len({unordered(d) for d in seen})
    return tuple(seen), LoadReport((origin,), total, scenarios, dict(odd))


@dataclass(frozen=True, slots=True)
class _Row:
    """One view of a dialogue, as any layout tells it."""

    you: tuple[int, ...]
    """Count and value of each item in turn, for the first side."""
    them: tuple[int, ...]
    """The same for the second side."""
    dialogue: str
    """Compared with the other view's, never used otherwise."""
    output: str
    """How it ended."""


def _text_row(line: str) -> _Row | str:
    found = _ROW.fullmatch(line)
    if not found:
        return "no <input> and <partner_input>"
    try:
        you, them = (tuple(map(int, part.split())) for part in (found["you"], found["them"]))
    except ValueError:
        return "a number of thousands of digits"
    dialogue, output = _DIALOGUE.search(line), _OUTPUT.search(line)
    return _Row(you, them, dialogue[1] if dialogue else "", output[1] if output else "")


def _json_row(line: str) -> _Row | str:
    try:
        return _hub_row(json.loads(line))
    except (ValueError, RecursionError) as error:
        return f"no JSON ({error})"


def _hub_row(row: Any) -> _Row | str:
    try:
        you, them = (_interleaved(row[side]) for side in ("input", "partner_input"))
        return _Row(you, them, str(row.get("dialogue", "")), str(row.get("output", "")))
    except (AttributeError, KeyError, TypeError, ValueError):
        return "no input and partner_input with count and value, three whole numbers each"


def _interleaved(side: Any) -> tuple[int, ...]:
    # Depending on its version, the client gives a dict of lists or a list of dicts.
    items = side if isinstance(side, list) else None
    counts, values = ([i[k] for i in items] if items else side[k] for k in ("count", "value"))
    numbers = tuple(n for pair in zip(counts, values, strict=True) for n in pair)
    if not all(type(n) is int for n in numbers):
        raise TypeError(numbers)
    return numbers


def _problem(row: _Row) -> str:
    if len(row.you) != 6 or len(row.them) != 6:
        return "an input does not have six numbers"
    counts = row.you[::2]
    if counts != row.them[::2]:
        return f"the sides count different items ({counts} and {row.them[::2]})"
    for side in (row.you, row.them):
        total = sum(c * v for c, v in zip(counts, side[1::2], strict=True))
        if total != 10:
            return f"a side's total is {total} instead of 10"
    if not 5 <= sum(counts) <= 7:
        return f"{sum(counts)} items instead of 5 to 7"
    return "a number below 0" if min(row.you + row.them) < 0 else ""


def _oddities(division: Division, row: _Row) -> Iterator[str]:
    for tag in _ODD_OUTPUTS:
        if tag in row.output:
            yield tag.strip("<>")
    if division.you == division.them:
        yield "identical_values"
    if 0 in division.you or 0 in division.them:
        yield "value_of_zero"
    if 10 in division.you or 10 in division.them:
        yield "value_of_ten"


def _words(dialogue: str) -> str:
    # The two views of a dialogue say the same words with YOU and THEM exchanged.
    return " ".join(dialogue.replace("YOU:", "S:").replace("THEM:", "S:").split())


def without_shared(
    train: Sequence[Division], heldout: Iterable[Division]
) -> tuple[tuple[Division, ...], int]:
    """Training scenarios that occur in no held-out one, and how many were removed."""
    taken = {unordered(d) for d in heldout}
    kept = tuple(d for d in train if unordered(d) not in taken)
    return kept, len(train) - len(kept)
