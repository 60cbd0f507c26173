"""Deal or No Deal (Lewis et al. 2017, CC BY-NC 4.0): pools to divide, from its text files.

``train.txt``, ``val.txt``, ``test.txt``, one line per dialogue view; only the two input fields are
used, as the same scenario appears in several lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from iterpo.environments.sources.files import LoadReport
from iterpo.errors import DataError

__all__ = [
    "Division",
    "read_divisions",
    "unordered",
    "without_shared",
]


@dataclass(frozen=True, slots=True)
class Division:
    """A pool to divide and what each side makes of it; items in the order book, hat, ball."""

    counts: tuple[int, ...]
    """Number of each item in the pool."""
    you: tuple[int, ...]
    """Value per item for the first side."""
    them: tuple[int, ...]
    """Value per item for the second side."""

    @property
    def swapped(self) -> Division:
        """The same scenario with the sides exchanged."""
        return Division(self.counts, self.them, self.you)


def unordered(division: Division) -> tuple[tuple[int, ...], ...]:
    """Identity of a scenario, whichever side is which.

    >>> a = Division((1, 1, 3), (1, 0, 3), (4, 3, 1))
    >>> unordered(a) == unordered(a.swapped)
    True
    """
    return (division.counts, *sorted((division.you, division.them)))


_ROW = re.compile(
    r"\s*<input>([ 0-9]+)</input>.*<partner_input>([ 0-9]+)</partner_input>\s*", re.DOTALL
)
_DIALOGUE = re.compile(r"<dialogue>(.*)</dialogue>", re.DOTALL)
_ODD_OUTPUTS = ("<disagree>", "<no_agreement>", "<disconnect>")


def read_divisions(path: Path) -> tuple[tuple[Division, ...], LoadReport]:
    """Scenarios of one Deal or No Deal file in order of first appearance, duplicates dropped.

    The two orders of a scenario (whose values come first) are both kept where both occur.

    Raises:
        DataError: if lines break the format or its promises (equal counts on both sides, each
            side's total 10, 5 to 7 items); the message names the first of them.
    """
    stat = path.stat()
    return _read_divisions(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=8)
def _read_divisions(path: Path, _mtime: int, _size: int) -> tuple[tuple[Division, ...], LoadReport]:
    seen: dict[Division, None] = {}
    views: Counter[tuple[object, ...]] = Counter()
    odd: Counter[str] = Counter()
    wrong: list[str] = []
    rows = 0
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        rows += 1
        division, problem = _division(line)
        if division is None:
            wrong.append(f"line {number}: {problem}")
            continue
        odd.update(_oddities(division, line))
        seen.setdefault(division)
        views[_dialogue_key(division, line)] += 1
    if wrong or not rows:
        raise DataError(
            f"{path} is not in the native Deal or No Deal format: "
            f"{len(wrong)} of {rows} rows are wrong ({'; '.join(wrong[:3]) or 'it is empty'}). "
            "Get the file again; its rows look like '<input> 2 1 1 4 2 2 </input> … "
            "<partner_input> 2 2 1 0 2 3 </partner_input>'"
        )
    odd["mirrored_pairs"] = sum(n // 2 for n in views.values())
    odd["single_rows"] = sum(n % 2 for n in views.values())
    odd["duplicate_rows"] = rows - len(seen)
    odd["ordered_scenarios"] = len(seen)
    scenarios = len({unordered(d) for d in seen})
    return tuple(seen), LoadReport((str(path),), rows, scenarios, dict(odd))


def _division(line: str) -> tuple[Division | None, str]:
    found = _ROW.fullmatch(line)
    if not found:
        return None, "no <input> and <partner_input>"
    you, them = (tuple(int(n) for n in part.split()) for part in found.groups())
    if len(you) != 6 or len(them) != 6:
        return None, "an input does not have six numbers"
    counts = you[::2]
    if counts != them[::2]:
        return None, f"the sides count different items ({counts} and {them[::2]})"
    for values in (you[1::2], them[1::2]):
        total = sum(c * v for c, v in zip(counts, values, strict=True))
        if total != 10:
            return None, f"a side's total is {total} instead of 10"
    if not 5 <= sum(counts) <= 7:
        return None, f"{sum(counts)} items instead of 5 to 7"
    return Division(counts, you[1::2], them[1::2]), ""


def _oddities(division: Division, line: str) -> Iterator[str]:
    for tag in _ODD_OUTPUTS:
        if tag in line:
            yield tag.strip("<>")
    if division.you == division.them:
        yield "identical_values"
    if 0 in division.you or 0 in division.them:
        yield "value_of_zero"
    if 10 in division.you or 10 in division.them:
        yield "value_of_ten"


def _dialogue_key(division: Division, line: str) -> tuple[object, ...]:
    # The two views of a dialogue say the same words with YOU and THEM exchanged.
    found = _DIALOGUE.search(line)
    words = found[1].replace("YOU:", "S:").replace("THEM:", "S:").split() if found else []
    return (unordered(division), " ".join(words))


def without_shared(
    train: Sequence[Division], heldout: Iterable[Division]
) -> tuple[tuple[Division, ...], int]:
    """Training scenarios that occur in no held-out one, and how many were removed."""
    taken = {unordered(d) for d in heldout}
    kept = tuple(d for d in train if unordered(d) not in taken)
    return kept, len(train) - len(kept)
