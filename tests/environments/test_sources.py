"""Raw data: found or missed with clear words, checked, counted, and split without leaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from iterpo.domain import Split
from iterpo.environments import make, sources
from iterpo.environments.deal_or_no_deal import DealOrNoDeal, DealOrNoDealOptions
from iterpo.errors import ConfigError, DataError, MissingDataError

GOOD = "<input> 2 1 1 4 2 2 </input> <dialogue> YOU: <selection> </dialogue> <output> item0=1 </output> <partner_input> 2 2 1 0 2 3 </partner_input>"  # noqa: E501


def game(folder: str, **options: object) -> DealOrNoDeal:
    return DealOrNoDeal(DealOrNoDealOptions(data_dir=folder, **options))  # type: ignore[arg-type]


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
