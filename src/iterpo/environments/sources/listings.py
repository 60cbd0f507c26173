"""CraigslistBargain (He et al. 2018): what is for sale, at which price, and the buyer's target.

Three layouts are read: the authors' JSON, the hub's rows as JSON Lines, and a CSV of listings. The
same listing was negotiated many times; each pair of a listing and a target is one scenario here.
What people said and agreed is never used.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from iterpo.domain import Split
from iterpo.environments.sources.files import LoadReport, Parsed, file_reader, find
from iterpo.environments.sources.hub import hub_rows
from iterpo.errors import DataError, MissingDataError

__all__ = ["Listing", "craigslist", "hub_listings", "read_listings"]

HUB_ID = "stanfordnlp/craigslist_bargains"
HUB_SPLITS = {"train": "train", "dev": "validation", "test": "test"}
FOLDERS = ("cocoa_native", "agreemate_csv", "hf_format_jsonl")
FILES = {
    "train": ("train.csv", "train.json", "train.jsonl"),
    "dev": ("dev.json", "validation.jsonl"),
    "test": ("test.json", "test.jsonl"),
}
"""Files of each part, the preferred one first."""
PUBLISHED = {
    "train.csv": "ad4c15d3cb985f7a348889aec81e885b530c81ebf8784f7c64f530668c296628",
    "dev.json": "7859b1d7ae6a92b334afbf45e6d426a253bdbfa907b81457cec9acd80d190afd",
    "test.json": "c802f15f80ea3066d429375393319d7234daacbd6a26a6ad5afd0ad78a2f7736",
    "test.jsonl": "db17f4e56cecbe0eac4dd1b92da1ebf8527259cc4b3aadfef26d22ad1f0e7921",
    "validation.jsonl": "60d37d8719084c92949187964bfe45d55d9d11b9cfa5665c8fcf7f8c7c38ab62",
}
"""SHA-256 of the published files."""
CSV_COLUMNS = ("scenario_id", "category", "list_price", "buyer_target", "title", "description")
HUB_COLUMNS = ("agent_info", "items")

Heldout = Literal["test", "dev"]
Source = Literal["folder", "hub"]
Record = Mapping[str, Any]
_Named = Iterable[tuple[str, Record]]
"""Records with what to call them in a message."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A thing for sale and one buyer's target for it."""

    kernel_id: str
    """``cl-`` and the source's own name; made from title and prices where it has none."""
    title: str
    """Title on one line."""
    category: str
    """As the source writes it."""
    list_price: float
    """Asking price in dollars, at least one cent."""
    target: float
    """Price in dollars that the buyer was told to aim at; at most the asking price."""
    description: str
    """All of the seller's text (in the CSV: the buyer's)."""
    buyer_description: str
    """What the buyer reads of it, as a rule the first half."""
    post_id: str
    """Number of the listing; empty where the source drops it."""


def craigslist(
    split: Split, data_dir: str | None, heldout_file: Heldout, source: Source
) -> Parsed[Listing]:
    """The scenarios of a split, sorted by kernel_id, and what was found in its source.

    A listing (title and price) that occurs in the held-out part is removed from training. Without
    a training file, dev is trained on and test is held out.

    Args:
        split: Train or held-out.
        data_dir: Folder with the files, flat or in their sub-folders; unused with the hub.
        heldout_file: The part that is held out.
        source: Where the parts come from.

    Raises:
        MissingDataError: if a part is absent or the hub can't be reached.
        DataError: if a file is broken.
    """
    heldout, report = _part(heldout_file, data_dir, source)
    if split is Split.HELDOUT:
        return heldout, report
    if source == "hub" or _find("train", data_dir):
        kept, report = _part("train", data_dir, source)
    elif heldout_file == "test" and _find("dev", data_dir):
        kept, report = _part("dev", data_dir, source)
    else:
        raise _missing("train", data_dir, "or hold out test.json and have dev.json to train on")
    taken = {_identity(entry) for entry in heldout}
    shared = [entry for entry in kept if _identity(entry) in taken]
    report = report.adding(
        scenarios_shared_with_heldout=len(shared),
        listings_shared_with_heldout=len({_identity(entry) for entry in shared}),
    )
    kept = tuple(entry for entry in kept if _identity(entry) not in taken)
    return _named_apart(kept, {entry.kernel_id for entry in heldout}), report


def _part(part: str, data_dir: str | None, source: Source) -> Parsed[Listing]:
    if source == "hub":
        return hub_listings(HUB_SPLITS[part])
    path = _find(part, data_dir)
    if path is None:
        raise _missing(part, data_dir, "or set the option source: hub")
    return read_listings(path)


def _find(part: str, data_dir: str | None) -> Path | None:
    return find(data_dir, ("craigslist", *FOLDERS), FILES[part])


def _missing(part: str, data_dir: str | None, instead: str) -> MissingDataError:
    given = f"data_dir is {data_dir!r}" if data_dir else "no data folder was given"
    return MissingDataError(
        f"craigslist: {given}; found no {' or '.join(FILES[part])} in it, nor in its sub-folders "
        f"craigslist, {', '.join(FOLDERS)}. Set the option data_dir (for commands also the "
        f"variable ITERPO_DATA) to the folder that holds them, {instead}"
    )


def _identity(entry: Listing) -> tuple[str, float]:
    # The CSV was cleaned: its look-alike characters differ from the other layouts'.
    return unicodedata.normalize("NFKC", entry.title), entry.list_price


def read_listings(path: Path) -> Parsed[Listing]:
    """Distinct scenarios of one file in any of the three layouts, sorted by kernel_id.

    Of the records with equal listing and target, the one with the smallest kernel_id is kept.

    Raises:
        DataError: if the file is in none of the layouts; the message names the record.
    """
    return _reader(path)


def _parsed(path: Path, text: str) -> Parsed[Listing]:
    first = text.lstrip()[:1]
    if not first:
        raise DataError(f"{path} is empty; get the file again")
    records: _Named
    if path.suffix.lower() == ".csv" or first not in "[{":
        records = _csv_records(path, text)
    elif first == "[":
        records = _json_records(path, text)
    else:
        records = _line_records(path, text)
    return _gathered(str(path), records)


_reader = file_reader(_parsed, PUBLISHED)


@lru_cache(maxsize=3)
def hub_listings(split: str) -> Parsed[Listing]:
    """Distinct scenarios of the published copy on a hub, sorted by kernel_id.

    Args:
        split: ``train``, ``validation`` or ``test``.

    Raises:
        MissingDataError: if the hub can't be reached.
        DataError: if a row is broken.
    """
    rows = hub_rows(HUB_ID, split, HUB_COLUMNS)
    return _gathered(
        f"{HUB_ID}, split {split}", ((f"row {n}", row) for n, row in enumerate(rows, start=1))
    )


def _json_records(path: Path, text: str) -> _Named:
    try:
        records = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON: {error}; get the file again") from None
    return [(f"record {n}", record) for n, record in enumerate(records, start=1)]


def _line_records(path: Path, text: str) -> Iterator[tuple[str, Record]]:
    # Not splitlines: it would split at the rarer separators that JSON text may hold.
    for n, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield f"line {n}", json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{path}, line {n} is not valid JSON: {error}; expected one record a line"
                ) from None


def _csv_records(path: Path, text: str) -> Iterator[tuple[str, Record]]:
    rows, n = csv.DictReader(io.StringIO(text, newline=""), strict=True), 0
    try:
        absent = [name for name in CSV_COLUMNS if name not in (rows.fieldnames or ())]
        if absent:
            raise DataError(
                f"{path} has no column {', '.join(absent)}; expected a CSV with the columns "
                f"{', '.join(CSV_COLUMNS)}, a JSON array, or one JSON object a line"
            )
        for n, row in enumerate(rows, start=1):
            if None in row or None in row.values():
                raise DataError(f"{path}, row {n} does not have as many fields as the header")
            yield f"row {n}", row
    except csv.Error as error:
        raise DataError(f"{path}, row {n + 1}: {error}; get the file again") from None


def _gathered(where: str, records: _Named) -> Parsed[Listing]:
    """Distinct scenarios, with a count of everything odd."""
    odd: Counter[str] = Counter()
    found: defaultdict[tuple[Any, ...], list[Listing]] = defaultdict(list)
    rows = 0
    for name, record in records:
        rows += 1
        try:
            entry = _listing(record, odd)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DataError(
                f"{where}, {name} is not in the layout of CraigslistBargain "
                f"({type(error).__name__}: {error}); get the file again"
            ) from None
        if entry is not None:
            key = (entry.post_id,) if entry.post_id else (entry.title, entry.list_price)
            found[*key, entry.target].append(entry)
    usable = sum(len(entries) for entries in found.values())
    kept = _named_apart([min(entries, key=_kernel_id) for entries in found.values()], ())
    targets = Counter(key[:-1] for key in found)
    counts = {
        "listings": len(targets),
        "listings_with_several_targets": sum(n > 1 for n in targets.values()),
        "duplicate_records": usable - len(found),
        **odd,
    }
    return kept, LoadReport((where,), rows, len(kept), counts)


def _kernel_id(entry: Listing) -> str:
    return entry.kernel_id


def _named_apart(entries: Sequence[Listing], taken: Collection[str]) -> tuple[Listing, ...]:
    """The listings sorted by kernel_id, those whose names would clash with a checksum added.

    In the data a few different scenarios have one uuid.
    """
    uses = Counter(entry.kernel_id for entry in entries) + Counter(taken)
    unique = [
        entry
        if uses[entry.kernel_id] == 1
        else dataclasses.replace(entry, kernel_id=f"{entry.kernel_id}-{_checksum(entry)[:6]}")
        for entry in entries
    ]
    return tuple(sorted(unique, key=_kernel_id))


def _listing(record: Record, odd: Counter[str]) -> Listing | None:
    """One record as a listing; None, and a count of the reason, if it can't be played."""
    layouts = {"scenario": _native, "agent_info": _hub, "list_price": _csv}
    read = next((read for key, read in layouts.items() if key in record), None)
    if read is None:
        raise ValueError(f"it has none of {', '.join(layouts)}")
    name, entry = read(record, odd)
    for reason, wrong in (
        ("title", not entry.title),
        ("price", not entry.list_price > 0),
        ("target", not entry.target > 0),
        ("target_above_price", entry.target > entry.list_price > 0),
    ):
        if wrong:
            odd[f"rejected_{reason}"] += 1
            return None
    odd["non_ascii_titles"] += not entry.title.isascii()
    odd["descriptions_with_newlines"] += "\n" in entry.description
    odd["descriptions_with_dollars"] += "$" in entry.description
    return dataclasses.replace(entry, kernel_id=f"cl-{name or _checksum(entry)[:12]}")


def _checksum(entry: Listing) -> str:
    parts = (entry.title, entry.list_price, entry.target, entry.post_id)
    words = "|".join(str(part) for part in parts if part)
    return hashlib.sha256(words.encode(errors="replace")).hexdigest()


def _native(record: Record, odd: Counter[str]) -> tuple[str, Listing]:
    scenario = record["scenario"]
    sides = {side["personal"]["Role"]: side for side in scenario["kbs"]}
    seller, buyer = sides["seller"], sides["buyer"]
    item = seller["item"]
    # The outer uuid is another scenario's in a third of the records.
    odd["scenario_uuid_differs"] += record.get("scenario_uuid") != scenario["uuid"]
    odd["description_is_text"] += isinstance(item["Description"], str)
    _count_outcome(record.get("outcome") or {}, odd)
    return scenario["uuid"], Listing(
        "",
        _line(item["Title"]),
        str(scenario["category"]),
        _dollars(item["Price"]),
        _dollars(buyer["personal"]["Target"]),
        _joined(item["Description"]),
        _joined(buyer["item"]["Description"]),
        str(scenario.get("post_id") or ""),
    )


def _count_outcome(outcome: Record, odd: Counter[str]) -> None:
    if "offer" not in outcome:
        odd["offer_absent"] += 1
    elif outcome["offer"] is None:
        odd["offer_null"] += 1
    elif not outcome.get("reward"):
        odd["offer_with_reward_0"] += 1


def _hub(record: Record, odd: Counter[str]) -> tuple[str, Listing]:  # noqa: ARG001
    people, items = record["agent_info"], record["items"]
    seller, buyer = people["Role"].index("seller"), people["Role"].index("buyer")
    return "", Listing(
        "",
        _line(items["Title"][seller]),
        str(items["Category"][seller]),
        _dollars(items["Price"][seller]),
        _dollars(people["Target"][buyer]),
        _joined(items["Description"][seller]),
        _joined(items["Description"][buyer]),
        "",
    )


def _csv(record: Record, odd: Counter[str]) -> tuple[str, Listing]:  # noqa: ARG001
    text = _joined(record["description"])
    return record["scenario_id"], Listing(
        "",
        _line(record["title"]),
        record["category"],
        _dollars(record["list_price"]),
        _dollars(record["buyer_target"]),
        text,
        text,
        "",
    )


def _dollars(value: object) -> float:
    """Dollars to the cent, whole ones as an int; 0 where there is no price."""
    if value is None or value == "":
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"{value!r} is no price")
    amount = float(value)
    if not math.isfinite(amount):
        return 0
    cents = round(100 * amount)
    return cents // 100 if cents % 100 == 0 else cents / 100


def _line(title: str | None) -> str:
    return " ".join(title.split()) if title else ""


def _joined(description: str | Sequence[str] | None) -> str:
    return description if isinstance(description, str) else " ".join(description or ())
