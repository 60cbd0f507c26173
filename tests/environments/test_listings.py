"""CraigslistBargain: three layouts, every anomaly counted, and a split that shares no listing."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iterpo.domain import Split
from iterpo.environments.craigslist import Craigslist, CraigslistOptions
from iterpo.environments.sources import (
    Listing,
    LoadReport,
    craigslist,
    hub_listings,
    read_listings,
)
from iterpo.errors import ConfigError, DataError, MissingDataError

COLUMNS = [
    *("scenario_id", "split_type", "category", "list_price", "buyer_target", "seller_target"),
    *("title", "description", "price_delta_pct"),
]


def native(uuid: str = "S_01", target: Any = 70, **changes: Any) -> dict[str, Any]:
    """An invented record in the authors' layout; what is never read is no use to any reader."""
    values = {"title": "Road bike", "price": 100, "post_id": "111", "outer": uuid} | changes
    item = {"Category": "bike", "Title": values["title"], "Price": values["price"]}
    half = values.get("half", ["Light frame."])
    full = values.get("full", ["Light frame.", "New tyres."])
    kbs = [
        {
            "personal": {"Role": "buyer", "Target": target, "Bottomline": None},
            "item": {**item, "Description": half, "Images": 17},
        },
        {
            "personal": {"Role": "seller", "Target": values["price"], "Bottomline": None},
            "item": {**item, "Description": full, "Images": 17},
        },
    ]
    if values.get("seller_first"):
        kbs.reverse()
    return {
        "uuid": "C_01",
        "scenario_uuid": values["outer"],
        "scenario": {"uuid": uuid, "post_id": values["post_id"], "category": "bike", "kbs": kbs},
        "agents": 17,
        "outcome": values.get("outcome", {"reward": 1, "offer": {"price": 85.0, "sides": ""}}),
        "events": 17,
    }


def hub(target: Any = 70.0, **changes: Any) -> dict[str, Any]:
    """The same in the hub's layout."""
    values = {"title": "Road bike", "price": 100.0} | changes
    roles = ["seller", "buyer"] if values.get("seller_first") else ["buyer", "seller"]
    targets = {"seller": values["price"], "buyer": target}
    texts = {"seller": "Light frame.,New tyres.", "buyer": "Light frame."}
    return {
        "agent_info": {
            "Bottomline": ["None", "None"],
            "Role": roles,
            "Target": [targets[role] for role in roles],
        },
        "items": {
            "Category": ["bike", "bike"],
            "Title": [values["title"]] * 2,
            "Price": [values["price"]] * 2,
            "Description": [texts[role] for role in roles],
            "Images": ["", ""],
        },
    }


def row(scenario_id: str = "train_00000", target: str = "70.0", **changes: str) -> dict[str, str]:
    """The same as a line of the CSV."""
    return {
        "scenario_id": scenario_id,
        "split_type": "train",
        "category": "vehicles",
        "list_price": "100.0",
        "buyer_target": target,
        "seller_target": "100.0",
        "title": "Road bike",
        "description": 'Light "frame",\nas new',
        "price_delta_pct": ".3",
        **changes,
    }


def write(path: Path, *records: Any) -> Path:
    """Writes records in the layout that the file's name stands for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, COLUMNS)
            table.writeheader()
            table.writerows(records)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    else:
        path.write_text(json.dumps(records), encoding="utf-8")
    return path


def read(tmp_path: Path, name: str, *records: Any) -> tuple[tuple[Listing, ...], LoadReport]:
    return read_listings(write(tmp_path / name, *records))


def test_the_native_layout(tmp_path: Path) -> None:
    (entry,), report = read(tmp_path, "test.json", native())
    assert entry == Listing(
        "cl-S_01",
        "Road bike",
        "bike",
        100,
        70,
        "Light frame. New tyres.",
        "Light frame.",
        "111",
    )
    assert (report.rows, report.scenarios) == (1, 1)
    assert report.published == {"test.json": False}


@pytest.mark.parametrize("seller_first", [False, True])
def test_the_hub_layout_names_a_scenario_by_its_words(tmp_path: Path, seller_first: bool) -> None:
    (entry,), _ = read(tmp_path, "test.jsonl", hub(seller_first=seller_first))
    # sha256 of "Road bike|100|70"
    assert entry.kernel_id == "cl-911380d6ae9c"
    assert (entry.list_price, entry.target, entry.post_id) == (100, 70, "")
    assert entry.description == "Light frame.,New tyres."
    assert entry.buyer_description == "Light frame."


def test_the_csv_layout(tmp_path: Path) -> None:
    (entry,), _ = read(tmp_path, "train.csv", row())
    assert entry == Listing(
        "cl-train_00000",
        "Road bike",
        "vehicles",
        100,
        70,
        'Light "frame",\nas new',
        'Light "frame",\nas new',
        "",
    )


@pytest.mark.parametrize("name", ["test.json", "test.data", "test.jsonl"])
def test_a_layout_is_told_by_the_first_byte(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("\ufeff \n" + json.dumps(hub()) + "\r\n\r\n" + json.dumps(hub(60)) + "\r\n")
    assert [entry.target for entry in read_listings(path)[0]] == [60, 70]
    path.write_text(json.dumps([native()], indent=2))
    assert [entry.kernel_id for entry in read_listings(path)[0]] == ["cl-S_01"]


def test_sides_are_told_by_role_and_the_inner_uuid_counts(tmp_path: Path) -> None:
    records = [native("S_01"), native("S_02", 60, outer="S_99", seller_first=True)]
    (a, b), report = read(tmp_path, "test.json", *records)
    assert (a.kernel_id, a.target) == ("cl-S_01", 70)
    assert (b.kernel_id, b.target, b.list_price) == ("cl-S_02", 60, 100)
    assert (b.description, b.buyer_description) == ("Light frame. New tyres.", "Light frame.")
    assert report.counts["scenario_uuid_differs"] == 1


def test_outcomes_are_counted_and_used_for_nothing(tmp_path: Path) -> None:
    outcomes: list[Any] = [
        {"reward": 0, "offer": None},
        {"reward": 0},
        {"reward": 0, "offer": {"price": 890.0, "sides": ""}},
        {"reward": 1, "offer": {"price": 0.07, "sides": ""}},
        None,
    ]
    records = [native(f"S_{i}", 50 + i, outcome=outcome) for i, outcome in enumerate(outcomes)]
    listings, report = read(tmp_path, "test.json", *records)
    assert [(entry.list_price, entry.target) for entry in listings] == [
        (100, 50 + i) for i in range(5)
    ]
    counted = {k: n for k, n in report.counts.items() if k.startswith("offer")}
    assert counted == {"offer_null": 1, "offer_absent": 2, "offer_with_reward_0": 1}


def test_of_duplicates_the_smallest_name_is_kept(tmp_path: Path) -> None:
    records = [
        native("S_03", title="Bike"),
        native("S_01"),
        native("S_02"),
        native("S_09", 60),
        native("S_08", post_id="222"),
    ]
    listings, report = read(tmp_path, "test.json", *records)
    assert [entry.kernel_id for entry in listings] == ["cl-S_01", "cl-S_08", "cl-S_09"]
    assert (report.rows, report.scenarios) == (5, 3)
    wanted = {"listings": 2, "listings_with_several_targets": 1, "duplicate_records": 2}
    assert wanted.items() <= report.counts.items()


def test_without_a_post_id_title_and_price_make_the_listing(tmp_path: Path) -> None:
    rows = [
        row("train_0", "70.0", title="Bike", list_price="100.0"),
        row("train_1", "70", title="Bike", list_price="100"),
        row("train_2", "60.0", title="Bike", list_price="100.0"),
        row("train_3", "70.0", title="Bike", list_price="90.0"),
        row("train_4", "70.0", title="Sofa", list_price="100.0"),
    ]
    listings, report = read(tmp_path, "train.csv", *rows)
    assert [entry.kernel_id for entry in listings] == [f"cl-train_{i}" for i in (0, 2, 3, 4)]
    assert report.counts["listings"] == 3
    without = [native("S_01", post_id=None), native("S_02", post_id=None)]
    assert [e.kernel_id for e in read(tmp_path, "test.json", *without)[0]] == ["cl-S_01"]


def test_scenarios_that_share_a_uuid_are_told_apart(tmp_path: Path) -> None:
    records = [native("S_01"), native("S_01", 60, post_id="222"), native("S_02", 50)]
    listings, report = read(tmp_path, "test.json", *records)
    ids = [entry.kernel_id for entry in listings]
    assert len(set(ids)) == report.scenarios == 3
    assert "cl-S_02" in ids
    assert sum(name.startswith("cl-S_01-") for name in ids) == 2
    assert [e.kernel_id for e in read(tmp_path, "dev.json", *records[::-1])[0]] == ids


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (native(target=None), "target"),
        (native(target=-1), "target"),
        (native(target=0), "target"),
        (native(price=None), "price"),
        (native(price=-1.0), "price"),
        (native(price=0), "price"),
        (native(target=101), "target_above_price"),
        (native(title=""), "title"),
        (hub(-1.0), "target"),
        (hub(price=-1.0), "price"),
        (row(target=""), "target"),
        (row(list_price="nan"), "price"),
    ],
)
def test_a_record_that_can_not_be_played_is_rejected_with_a_counted_reason(
    tmp_path: Path, record: dict[str, Any], reason: str
) -> None:
    good = {"scenario": native("S_ok", 60), "agent_info": hub(60.0), "list_price": row("ok", "60")}
    layout, fine = next((key, good[key]) for key in good if key in record)
    name = {"scenario": "a.json", "agent_info": "a.jsonl", "list_price": "a.csv"}[layout]
    listings, report = read(tmp_path, name, record, fine)
    assert [entry.target for entry in listings] == [60]
    assert {k: n for k, n in report.counts.items() if k.startswith("rejected")} == {
        f"rejected_{reason}": 1
    }
    assert (report.rows, report.counts["duplicate_records"]) == (2, 0)


def test_titles_and_descriptions_are_kept_as_they_are(tmp_path: Path) -> None:
    records = [
        native("S_01", 70, title="Café  table\n(new)", full="All of it, $5 off", half="All"),
        native("S_02", 60, full=["One\nline", "two"], half=[]),
    ]
    (a, b), report = read(tmp_path, "test.json", *records)
    assert (a.title, a.description, a.buyer_description) == (
        "Café table (new)",
        "All of it, $5 off",
        "All",
    )
    assert (b.description, b.buyer_description) == ("One\nline two", "")
    wanted = {
        "non_ascii_titles": 1,
        "descriptions_with_newlines": 1,
        "descriptions_with_dollars": 1,
        "description_is_text": 1,
    }
    assert wanted.items() <= report.counts.items()


def test_prices_are_read_to_the_cent(tmp_path: Path) -> None:
    single = 19.989999771118164  # 19.99 in single precision, as the hub keeps it
    (entry,), _ = read(tmp_path, "test.jsonl", hub(10.0, price=single))
    assert (entry.list_price, entry.target) == (19.99, 10)
    assert isinstance(entry.target, int)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.json", "[{", "a.json is not valid JSON"),
        ("a.json", "[17]", "a.json, record 1 is not in the layout"),
        ("a.json", '[{"price": 1}]', "none of scenario, agent_info, list_price"),
        ("a.json", json.dumps([native(), {**native(), "scenario": {}}]), "record 2 .*KeyError"),
        ("a.json", json.dumps([native(price="ten")]), "record 1 .*ten"),
        ("a.json", json.dumps([native(price=True)]), "record 1 .*True is no price"),
        ("a.json", json.dumps([native(price=10**400)]), "record 1 .*OverflowError"),
        ("a.json", json.dumps([native(title=5)]), "record 1"),
        ("a.json", "[" * 100_000, "a.json is not valid JSON"),
        ("a.jsonl", json.dumps(hub()) + "\n{", "a.jsonl, line 2 is not valid JSON"),
        ("a.jsonl", json.dumps(hub()).replace("seller", "vendor"), "line 1 .*ValueError"),
        ("a.csv", "title,list_price\nBike,100\n", "no column scenario_id, category, buyer_target"),
        ("a.csv", ",".join(COLUMNS) + "\ntrain_0,train\n", "row 1 does not have as many fields"),
        ("a.csv", ",".join(COLUMNS) + '\n"train', "row 1: unexpected end"),
        ("a.txt", "hello", "no column scenario_id"),
        ("a.json", " \n", "is empty"),
    ],
)
def test_a_broken_file_is_named_with_its_record(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(DataError, match=says) as raised:
        read_listings(path)
    assert name in str(raised.value)
    assert "NoneType" not in str(raised.value)


def test_a_binary_file_is_no_data_set(tmp_path: Path) -> None:
    path = tmp_path / "test.json"
    path.write_bytes(b"[\xff\xfe]")
    with pytest.raises(DataError, match="not UTF-8"):
        read_listings(path)


LAYOUT = {"csv": "agreemate_csv", "json": "cocoa_native", "jsonl": "hf_format_jsonl"}


@pytest.mark.parametrize("place", ["{name}", "{sub}/{name}", "craigslist/{sub}/{name}"])
def test_a_listing_is_in_one_split_only(tmp_path: Path, place: str) -> None:
    def put(name: str, *records: Any) -> None:
        sub = LAYOUT[name.partition(".")[2]]
        write(tmp_path / place.format(name=name, sub=sub), *records)

    put(
        "train.csv",
        row("train_0", title="Car"),
        row("train_1"),
        row("train_2", "60"),
        row("train_3", "60", list_price="99"),
        row("train_4", title="UAP‐AC"),
    )
    # The CSV was cleaned: another hyphen, single blanks.
    put("test.json", native("S_01", 50), native("S_02", title="UAP‑AC ", post_id="2"))
    put("dev.json", native("S_03", title="Lamp", post_id="3"))
    train, report = craigslist(Split.TRAIN, str(tmp_path), "test", "folder")
    assert [entry.kernel_id for entry in train] == ["cl-train_0", "cl-train_3"]
    assert report.counts["scenarios_shared_with_heldout"] == 3
    assert report.counts["listings_shared_with_heldout"] == 2
    assert report.files[0].endswith("train.csv")
    held, _ = craigslist(Split.HELDOUT, str(tmp_path), "test", "folder")
    assert [entry.kernel_id for entry in held] == ["cl-S_01", "cl-S_02"]
    assert len(craigslist(Split.TRAIN, str(tmp_path), "dev", "folder")[0]) == 5


def test_without_a_training_file_dev_is_trained_on(tmp_path: Path) -> None:
    write(tmp_path / "test.json", native("S_01"), native("S_02", 60))
    write(
        tmp_path / "dev.json",
        native("S_01", 50, title="Lamp", post_id="3"),
        native("S_04", 50, title="Sofa", post_id="4"),
        native("S_05", 50, post_id="5"),
    )
    train, report = craigslist(Split.TRAIN, str(tmp_path), "test", "folder")
    names = [entry.kernel_id for entry in train]
    assert names[1] == "cl-S_04"
    assert names[0].startswith("cl-S_01-")
    assert len(names) == 2
    assert report.counts["listings_shared_with_heldout"] == 1
    with pytest.raises(MissingDataError, match=r"no train\.csv or .*hold out test\.json"):
        craigslist(Split.TRAIN, str(tmp_path), "dev", "folder")


def test_the_hubs_rows_serve_where_the_native_file_is_absent(tmp_path: Path) -> None:
    write(tmp_path / "test.jsonl", hub(60.0))
    write(tmp_path / "validation.jsonl", hub(50.0, title="Sofa"))
    (entry,), _ = craigslist(Split.HELDOUT, str(tmp_path), "test", "folder")
    assert entry.target == 60
    (entry,), _ = craigslist(Split.TRAIN, str(tmp_path), "test", "folder")
    assert entry.title == "Sofa"
    write(tmp_path / "test.json", native("S_01"))
    assert craigslist(Split.HELDOUT, str(tmp_path), "test", "folder")[0][0].kernel_id == "cl-S_01"


def test_missing_data_say_what_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"no data folder.*test\.json or test\.jsonl"):
        craigslist(Split.TRAIN, None, "test", "folder")
    with pytest.raises(MissingDataError, match=r"dev\.json or validation\.jsonl.*agreemate_csv"):
        craigslist(Split.HELDOUT, str(tmp_path), "dev", "folder")


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "test.json"
    assert len(read(tmp_path, "test.json", native())[0]) == 1
    write(path, native(), native("S_02", 60))
    assert len(read_listings(path)[0]) == 2


def test_from_the_hub(publish: Callable[..., None]) -> None:
    hub_listings.cache_clear()
    name = "stanfordnlp/craigslist_bargains"
    publish(name, "train", [hub(), hub(60.0, title="Sofa"), hub(60.0, title="Sofa")])
    publish(name, "test", [hub(50.0)])
    env = Craigslist(CraigslistOptions(source="hub"))
    (kernel,) = env.scenarios(Split.TRAIN, 1)
    assert (kernel.facts["title"], kernel.facts["target"]) == ("Sofa", 60)
    report = env.load_report(Split.TRAIN)
    assert report.files == ("stanfordnlp/craigslist_bargains, split train",)
    assert (report.rows, report.counts["duplicate_records"]) == (3, 1)
    assert report.counts["listings_shared_with_heldout"] == 1
    assert env.scenarios(Split.HELDOUT, 1)[0].facts["target"] == 50
    hub_listings.cache_clear()


def test_kernels_are_drawn_by_seed(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", *(row(f"train_{i}", str(50 + i)) for i in range(9)))
    write(tmp_path / "test.json", native(title="Sofa"))
    env = Craigslist(CraigslistOptions(data_dir=str(tmp_path)))
    assert env.scenarios(Split.TRAIN, 9, 1) == env.scenarios(Split.TRAIN, 9, 1)
    assert env.scenarios(Split.TRAIN, 3, 1) == env.scenarios(Split.TRAIN, 9, 1)[:3]
    orders = {tuple(k.kernel_id for k in env.scenarios(Split.TRAIN, 9, s)) for s in range(9)}
    assert len(orders) > 1
    assert {k.split for k in env.scenarios(Split.TRAIN, 9)} == {Split.TRAIN}
    with pytest.raises(ConfigError, match="has 9 train kernels, 10 were asked for"):
        env.scenarios(Split.TRAIN, 10)


def real(data_dir: str, split: Split, heldout: Any) -> tuple[tuple[Listing, ...], LoadReport]:
    return craigslist(split, data_dir, heldout, "folder")


@pytest.mark.data
@pytest.mark.parametrize(("heldout", "scenarios", "listings"), [("test", 12, 4), ("dev", 14, 3)])
def test_counts_of_the_real_training_file(
    data_dir: str, heldout: str, scenarios: int, listings: int
) -> None:
    kept, report = real(data_dir, Split.TRAIN, heldout)
    assert (report.rows, report.scenarios) == (5202, 3227)
    assert report.counts["listings_shared_with_heldout"] == listings
    assert report.counts["scenarios_shared_with_heldout"] == scenarios
    assert len(kept) == 3227 - scenarios
    assert (min(e.list_price for e in kept), max(e.list_price for e in kept)) == (3, 56500)
    assert not any(key.startswith("rejected") for key in report.counts)
    assert report.published == {"train.csv": True}
    held, _ = real(data_dir, Split.HELDOUT, heldout)
    assert not {(e.title, e.list_price) for e in kept} & {(e.title, e.list_price) for e in held}
    assert not {e.kernel_id for e in kept} & {e.kernel_id for e in held}


@pytest.mark.data
def test_counts_of_the_real_heldout_files(data_dir: str) -> None:
    total: dict[str, int] = {}
    for heldout, rows, scenarios, listings, smallest, largest in (
        ("test", 838, 504, 161, 5, 27500),
        ("dev", 597, 396, 131, 2, 30600),
    ):
        held, report = real(data_dir, Split.HELDOUT, heldout)
        assert (report.rows, report.scenarios) == (rows, scenarios)
        assert len({e.kernel_id for e in held}) == scenarios
        assert report.counts["listings"] == len({e.post_id for e in held}) == listings
        assert min(e.list_price for e in held) == smallest
        assert max(e.list_price for e in held) == largest
        assert report.published == {f"{heldout}.json": True}
        assert not any(key.startswith("rejected") for key in report.counts)
        assert {e.category for e in held} == {
            *("bike", "car", "electronics", "furniture", "housing", "phone")
        }
        for key, n in report.counts.items():
            total[key] = total.get(key, 0) + n
    assert total == {
        "listings": 292,
        "listings_with_several_targets": 276,
        "duplicate_records": 535,
        "scenario_uuid_differs": 437,
        "description_is_text": 0,
        "offer_null": 244,
        "offer_absent": 4,
        "offer_with_reward_0": 98,
        "non_ascii_titles": 16,
        "descriptions_with_newlines": 3,
        "descriptions_with_dollars": 28,
    }


@pytest.mark.data
def test_the_two_real_copies_hold_the_same_scenarios(data_dir: str) -> None:
    folder = Path(data_dir) / "craigslist"
    for name, copy in (("test", "test"), ("dev", "validation")):
        ours, _ = read_listings(folder / "cocoa_native" / f"{name}.json")
        theirs, report = read_listings(folder / "hf_format_jsonl" / f"{copy}.jsonl")
        assert report.published == {f"{copy}.jsonl": True}
        assert sorted((e.title, e.list_price, e.target) for e in ours) == sorted(
            (e.title, e.list_price, e.target) for e in theirs
        )
        assert len({e.kernel_id for e in theirs}) == len(theirs)


@pytest.mark.data
def test_the_real_fallback_shares_no_listing(data_dir: str) -> None:
    native_only = str(Path(data_dir) / "craigslist" / "cocoa_native")
    train, report = real(native_only, Split.TRAIN, "test")
    held, _ = real(native_only, Split.HELDOUT, "test")
    assert report.files[0].endswith("dev.json")
    assert report.counts["listings_shared_with_heldout"] == 1
    assert len(train) == 396 - report.counts["scenarios_shared_with_heldout"]
    assert not {(e.title, e.list_price) for e in train} & {(e.title, e.list_price) for e in held}
    assert not {e.kernel_id for e in train} & {e.kernel_id for e in held}


@pytest.mark.data
def test_the_real_golden_kernel(data_dir: str) -> None:
    env = Craigslist(CraigslistOptions(data_dir=data_dir, heldout_file="dev"))
    kernels = {k.kernel_id: k for k in env.scenarios(Split.HELDOUT, 396)}
    facts = kernels["cl-S_To118PXuNicOd8SO"].facts
    assert (facts["list_price"], facts["target"]) == (265, 243)
