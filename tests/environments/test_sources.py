"""Raw data: found or missed with clear words, checked, counted, and split without leaks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iterpo.domain import Split
from iterpo.environments import make, sources
from iterpo.environments.deal_or_no_deal import DealOrNoDeal, DealOrNoDealOptions
from iterpo.errors import ConfigError, DataError, MissingDataError

GOOD = "<input> 2 1 1 4 2 2 </input> <dialogue> YOU: <selection> </dialogue> <output> item0=1 </output> <partner_input> 2 2 1 0 2 3 </partner_input>"  # noqa: E501


def game(folder: str, **options: object) -> DealOrNoDeal:
    return DealOrNoDeal(DealOrNoDealOptions(data_dir=folder, **options))  # type: ignore[arg-type]


HUB_ID = "mikelewis0/deal_or_no_dialog"


def hub_row(line: str) -> dict[str, Any]:
    """A line of the text files in the hub's layout."""

    def field(tag: str) -> str:
        found = re.search(f"<{tag}>(.*)</{tag}>", line)
        assert found
        return found[1].strip()

    sides = {}
    for tag in ("input", "partner_input"):
        numbers = [int(n) for n in field(tag).split()]
        sides[tag] = {"count": numbers[::2], "value": numbers[1::2]}
    return {**sides, "dialogue": field("dialogue"), "output": field("output")}


def hub_rows(path: Path) -> list[dict[str, Any]]:
    return [hub_row(line) for line in path.read_text().splitlines() if line.strip()]


def test_invented_files_give_both_orders_and_count_what_is_odd(deal_files: str) -> None:
    env = game(deal_files)
    train = {k.kernel_id for k in env.scenarios(Split.TRAIN, 3)}
    assert train == {"dond-2,1,2|1,4,2|2,0,3", "dond-2,1,2|2,0,3|1,4,2", "dond-1,2,3|0,2,2|10,0,0"}
    report = env.load_report(Split.TRAIN)
    assert (report.rows, report.scenarios) == (5, 3)
    assert report.counts["shared_with_heldout"] == 1
    assert report.counts["disagree"] == report.counts["disconnect"] == 1
    assert report.counts["mirrored_pairs"] == 1
    assert report.counts["value_of_ten"] == 1
    held = env.load_report(Split.HELDOUT).counts
    assert held["identical_values"] == held["no_agreement"] == 1
    assert {k.kernel_id for k in game(deal_files, orders="first").scenarios(Split.TRAIN, 2)} < train


def test_a_scenario_is_drawn_by_seed_and_not_by_position(deal_files: str) -> None:
    env = game(deal_files)
    a, b = env.scenarios(Split.TRAIN, 3, data_seed=1), env.scenarios(Split.TRAIN, 3, data_seed=1)
    assert a == b
    orders = {tuple(k.kernel_id for k in env.scenarios(Split.TRAIN, 3, s)) for s in range(20)}
    assert len(orders) > 1
    assert env.scenarios(Split.TRAIN, 2, 1) == a[:2]


def test_too_many_kernels_and_missing_data_are_named(deal_files: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 3 train kernels, 99 were asked for"):
        game(deal_files).scenarios(Split.TRAIN, 99)
    with pytest.raises(MissingDataError, match=r"no data folder was given.*train.txt, test.txt"):
        make("deal_or_no_deal").scenarios(Split.TRAIN, 1)
    with pytest.raises(MissingDataError, match=r"looked for train.txt, val.txt in .*nowhere"):
        game(str(tmp_path / "nowhere"), heldout_file="val").scenarios(Split.TRAIN, 1)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("hello", "line 2: no <input>"),
        (GOOD.replace("<input> 2 1", "<input> 2 2"), "line 2: a side's total is 12"),
        (
            GOOD.replace("<partner_input> 2 2 1 0", "<partner_input> 2 2 2 0"),
            "count different items",
        ),
        (GOOD.replace("<input> 2 1 1", "<input> 2 1"), "does not have six numbers"),
        (GOOD[:40], "line 2: no <input>"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "train.txt"
    path.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(DataError, match="1 of 2 rows are wrong") as raised:
        sources.read_divisions(path)
    assert says in str(raised.value)


def test_an_empty_or_binary_file_is_no_data_set(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_text("\n")
    with pytest.raises(DataError, match="it is empty"):
        sources.read_divisions(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not UTF-8"):
        sources.read_divisions(path)


def test_the_hubs_rows_give_the_same_kernels_and_counts(
    deal_files: str, tmp_path: Path, publish: Callable[..., None]
) -> None:
    folder = tmp_path / "json"
    folder.mkdir()
    for name, hub_name in (("train", "train"), ("test", "test"), ("val", "validation")):
        rows = hub_rows(Path(deal_files) / f"{name}.txt")
        (folder / f"{hub_name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        publish(HUB_ID, hub_name, rows, config="dialogues")
    for split, n in ((Split.TRAIN, 3), (Split.HELDOUT, 2)):
        texts, jsons, hub = (
            game(deal_files),
            game(str(folder)),
            DealOrNoDeal(DealOrNoDealOptions(source="hub")),
        )
        assert texts.scenarios(split, n) == jsons.scenarios(split, n) == hub.scenarios(split, n)
        reports = [env.load_report(split) for env in (texts, jsons, hub)]
        assert reports[0].counts == reports[1].counts == reports[2].counts
        assert reports[2].files == (f"{HUB_ID}, split {('train', 'test')[split.code]}",)
    tuned = DealOrNoDeal(DealOrNoDealOptions(source="hub", heldout_file="val"))
    assert tuned.scenarios(Split.HELDOUT, 1) == game(str(folder), heldout_file="val").scenarios(
        Split.HELDOUT, 1
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2: no JSON"),
        ("[1]", "line 2: no input and partner_input"),
        ('{"input": {"count": [1], "value": [1]}}', "line 2: no input and partner_input"),
        (json.dumps({**hub_row(GOOD), "input": {"count": [2, 1], "value": [1, 8]}}), "six numbers"),
        (
            json.dumps({**hub_row(GOOD), "input": {"count": [2.0, 1, 2], "value": [1, 4, 2]}}),
            "whole numbers",
        ),
        (
            json.dumps({**hub_row(GOOD), "input": {"count": [2, 1, 2], "value": [6, -4, 1]}}),
            "below 0",
        ),
    ],
)
def test_a_broken_row_in_the_hubs_layout_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(f"{json.dumps(hub_row(GOOD))}\n{line}\n")
    with pytest.raises(DataError, match="1 of 2 rows are wrong") as raised:
        sources.read_divisions(path)
    assert says in str(raised.value)


def test_rows_that_a_client_gives_as_lists_of_pairs_are_read_too(tmp_path: Path) -> None:
    row = hub_row(GOOD)
    for side in ("input", "partner_input"):
        pairs = zip(row[side]["count"], row[side]["value"], strict=True)
        row[side] = [{"count": c, "value": v} for c, v in pairs]
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(row))
    assert sources.read_divisions(path)[0] == (sources.Division((2, 1, 2), (1, 4, 2), (2, 0, 3)),)


def test_invented_files_are_not_the_published_ones(deal_files: str) -> None:
    report = game(deal_files).load_report(Split.TRAIN)
    assert report.published == {"train.txt": False}
    assert len(report.sha256["train.txt"]) == 64


@pytest.mark.data
def test_the_real_files_in_the_hubs_layout_say_the_same(data_dir: str, tmp_path: Path) -> None:
    for name in ("train", "test", "val"):
        text = Path(data_dir) / "dealornodeal" / f"{name}.txt"
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in hub_rows(text)))
        plain, same = sources.read_divisions(text), sources.read_divisions(path)
        assert plain[0] == same[0]
        assert plain[1].counts == same[1].counts
        assert (plain[1].rows, plain[1].scenarios) == (same[1].rows, same[1].scenarios)
        assert plain[1].published == {text.name: True}


@pytest.mark.data
def test_counts_of_the_real_files(data_dir: str) -> None:
    ids: dict[str, set[tuple[str, ...]]] = {}
    reports = {}
    for name, split, ordered, plain in (
        ("test", Split.TRAIN, 3693, 1884),
        ("test", Split.HELDOUT, 390, 200),
        ("val", Split.HELDOUT, 389, 200),
    ):
        env = game(data_dir, heldout_file=name)
        report = env.load_report(split)
        assert (report.counts["ordered_scenarios"], report.scenarios) == (ordered, plain)
        assert report.counts.get("shared_with_heldout", 0) == 0
        kernels = env.scenarios(split, ordered)
        ids[f"{name} {split}"] = {
            (counts, *sorted(values))
            for counts, *values in (k.kernel_id.split("|") for k in kernels)
        }
        assert len(ids[f"{name} {split}"]) == plain
        reports[f"{name} {split}"] = report
    train, test, val = ids.values()
    assert not train & test
    assert not train & val
    assert not test & val
    total = {
        key: sum(r.counts.get(key, 0) for r in reports.values())
        for key in (
            "mirrored_pairs",
            "single_rows",
            "disagree",
            "no_agreement",
            "disconnect",
            "identical_values",
        )
    }
    assert total == {
        "mirrored_pairs": 5916,
        "single_rows": 402,
        "disagree": 1450,
        "no_agreement": 1182,
        "disconnect": 72,
        "identical_values": 197,
    }
    assert total["mirrored_pairs"] + total["single_rows"] == 6318
    assert sum(report.scenarios for report in reports.values()) == 2284
    assert [report.rows for report in reports.values()] == [10095, 1052, 1087]
    for report in reports.values():
        assert all(report.published.values())
