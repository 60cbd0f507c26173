"""CaSiNo (Chawla et al. 2021, CC BY 4.0): what two campers need most and why, from casino.json.

Only ``value2issue`` and ``value2reason`` of the two participants are used: what they said, scored,
and who they are (demographics, personality) is never looked at.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from iterpo.domain import Split
from iterpo.environments.sources.files import LoadReport, Parsed, file_reader
from iterpo.environments.sources.hub import hub_rows
from iterpo.errors import DataError

__all__ = ["Camper", "Campsite", "campsite_split", "hub_campsites", "read_campsites"]

HUB_ID = "kchawla123/casino"
PUBLISHED = {"casino.json": "4f2c4560a0070906ed018c3f0766e35f8f8f31b36274ebf35b608621915744ab"}
"""SHA-256 of the published file."""

LEVELS = ("High", "Medium", "Low")
ISSUES = ("Food", "Water", "Firewood")
CAMPERS = ("mturk_agent_1", "mturk_agent_2")
DIALOGUES = 1030
TRAIN = 875
_CURLY = frozenset("‘’“”")


@dataclass(frozen=True, slots=True)
class Camper:
    """What one side needs; both fields go from high to low."""

    order: tuple[str, ...]
    """Food, Water and Firewood by priority."""
    reasons: tuple[str, ...]
    """Why, in the person's own words, verbatim."""


@dataclass(frozen=True, slots=True)
class Campsite:
    """Two neighbours."""

    number: int
    """``dialogue_id``; on the hub the number of the row."""
    campers: tuple[Camper, Camper]
    """``mturk_agent_1``, who becomes the agent, and ``mturk_agent_2``."""


def campsite_split(number: int) -> Split:
    """The split of a dialogue: the published 1,030 numbers shuffled once, the first 875 train.

    It depends on nothing but the number, so that a part of the file can't mix the splits.

    >>> [campsite_split(n).value for n in (751, 325, 408, 597)]
    ['train', 'train', 'heldout', 'heldout']
    """
    return Split.HELDOUT if number in _heldout() else Split.TRAIN


@lru_cache(maxsize=1)
def _heldout() -> frozenset[int]:
    numbers = list(range(DIALOGUES))
    random.Random(42).shuffle(numbers)
    return frozenset(numbers[TRAIN:])


def read_campsites(path: Path) -> Parsed[Campsite]:
    """All dialogues of a CaSiNo file, in its order.

    Raises:
        DataError: if records break the format (three priorities and reasons a side, each item once,
            every number once); the message names the first of them.
    """
    return _reader(path)


def _parsed(path: Path, text: str) -> Parsed[Campsite]:
    try:
        records = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no JSON text: {error}. Get the file again") from None
    if not isinstance(records, list):
        raise DataError(f"{path} holds no list of dialogues; get the published casino.json")
    numbers = [r.get("dialogue_id") if isinstance(r, Mapping) else None for r in records]
    return _gathered(str(path), records, numbers)


_reader = file_reader(_parsed, PUBLISHED)


def hub_campsites() -> Parsed[Campsite]:
    """The same from the published copy on a hub, where dialogues are numbered by their rows.

    Raises:
        MissingDataError: if the hub can't be reached.
        DataError: as ``read_campsites``.
    """
    rows = hub_rows(HUB_ID, "train", ("participant_info",))
    return _gathered(f"{HUB_ID}, split train", rows, range(len(rows)))


def _gathered(origin: str, records: Sequence[Any], numbers: Sequence[Any]) -> Parsed[Campsite]:
    found: dict[int, Campsite] = {}
    odd: Counter[str] = Counter()
    wrong: list[str] = []
    for i, (record, number) in enumerate(zip(records, numbers, strict=True)):
        try:
            if type(number) is not int or number < 0 or number in found:
                raise ValueError(f"dialogue_id is {number!r}, not a number of its own")
            people = record["participant_info"]
            first, second = (_camper(people[name]) for name in CAMPERS)
        except KeyError as error:
            wrong.append(f"record {i}: there is no {error}")
        except (TypeError, ValueError) as error:
            wrong.append(f"record {i}: {error}")
        else:
            found[number] = Campsite(number, (first, second))
            odd.update(_oddities(found[number]))
            odd["second_camper_first"] += next(iter(people)) == CAMPERS[1]
    if wrong or not found:
        raise DataError(
            f"{origin} is not in the CaSiNo format: {len(wrong)} of {len(records)} records are "
            f"wrong ({'; '.join(wrong[:3]) or 'it is empty'}). Get the published casino.json "
            "(kushalchawla/CaSiNo, data/casino.json) again"
        )
    scenarios = len({site.campers for site in found.values()})
    return tuple(found.values()), LoadReport((origin,), len(records), scenarios, dict(odd))


def _camper(person: Mapping[str, Any]) -> Camper:
    issues, reasons = person["value2issue"], person["value2reason"]
    order = tuple(issues[level] for level in LEVELS)
    why = tuple(reasons[level] for level in LEVELS)
    if sorted(map(str, order)) != sorted(ISSUES):
        raise ValueError(f"the priorities are {order}, not {', '.join(ISSUES)} in some order")
    if not all(isinstance(reason, str) and reason.strip() for reason in why):
        raise ValueError(f"the reasons are {why}, not three texts")
    return Camper(order, why)


def _oddities(site: Campsite) -> Iterator[str]:
    one, two = site.campers
    if one.order == two.order:
        yield "equal_orders"
    for reason in (*one.reasons, *two.reasons):
        yield "reasons"
        if reason != reason.strip():
            yield "reasons_with_outer_blanks"
        if reason.endswith("."):
            yield "reasons_with_final_dot"
        if _CURLY & set(reason):
            yield "reasons_with_curly_quotes"
