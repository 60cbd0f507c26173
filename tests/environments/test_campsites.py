"""CaSiNo's data: priorities and reasons only, counted, split by number, from a folder or a hub."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iterpo.domain import Role, Split
from iterpo.environments import boxed, sources
from iterpo.environments.casino import Casino, CasinoOptions
from iterpo.errors import ConfigError, DataError, MissingDataError

HUB_ID = "kchawla123/casino"
TRAIN_IDS, HELDOUT_IDS = (751, 325, 971, 375, 415), (408, 597, 438)


def person(*order: str, reasons: tuple[str, str, str] = ("we eat", "we drink", "we burn")) -> Any:
    by_level = dict(zip(("High", "Medium", "Low"), order, strict=True))
    why = dict(zip(("High", "Medium", "Low"), reasons, strict=True))
    return {
        # Key order varies in the data.
        "value2issue": {level: by_level[level] for level in ("Low", "High", "Medium")},
        "value2reason": why,
        "outcomes": {"points_scored": 19},
        "demographics": {"age": "canary-age"},
        "personality": {"svo": "canary-svo"},
    }


def record(number: int, swapped: bool = False) -> dict[str, Any]:
    people = {
        "mturk_agent_1": person(
            "Food", "Firewood", "Water", reasons=(" we eat a lot. ", "cold nights.", "it’s wet")
        ),
        "mturk_agent_2": person("Water", "Food", "Firewood"),
    }
    if swapped:
        people = dict(reversed(people.items()))
    return {
        "dialogue_id": number,
        "chat_logs": [{"text": "canary-chat", "task_data": {}, "id": "mturk_agent_1"}],
        "participant_info": people,
        "annotations": [["canary-chat", "small-talk"]],
    }


def write(folder: Path, records: Any) -> str:
    (folder / "casino.json").write_text(json.dumps(records))
    return str(folder)


def game(folder: str) -> Casino:
    return Casino(CasinoOptions(data_dir=folder))


def test_priorities_are_turned_round_and_camper_1_is_mturk_agent_1(tmp_path: Path) -> None:
    records = [record(751), record(325, swapped=True), record(408)]
    env = game(write(tmp_path, records))
    kernels = {k.kernel_id: k for k in env.scenarios(Split.TRAIN, 2)}
    assert kernels.keys() == {"casino-751", "casino-325"}
    for kernel in kernels.values():
        assert kernel.facts == {
            "agent_order": ["Food", "Firewood", "Water"],
            "agent_reasons": [" we eat a lot. ", "cold nights.", "it’s wet"],
            "partner_order": ["Water", "Food", "Firewood"],
            "partner_reasons": ["we eat", "we drink", "we burn"],
        }
    report = env.load_report(Split.TRAIN)
    assert (report.rows, report.published) == (3, {"casino.json": False})
    assert report.counts == {
        "reasons": 18,
        "reasons_with_outer_blanks": 3,
        "reasons_with_final_dot": 3,
        "reasons_with_curly_quotes": 3,
        "second_camper_first": 1,
        "train_scenarios": 2,
    }
    assert [k.kernel_id for k in env.scenarios(Split.HELDOUT, 1)] == ["casino-408"]


def test_equal_orders_are_counted(tmp_path: Path) -> None:
    same = record(0)
    same["participant_info"]["mturk_agent_1"] = person("Water", "Food", "Firewood")
    assert (
        game(write(tmp_path, [same, record(1)])).load_report(Split.TRAIN).counts["equal_orders"]
        == 1
    )


def test_personal_fields_and_chat_are_not_needed_and_never_kept(tmp_path: Path) -> None:
    full = game(write(tmp_path, [record(751)])).scenarios(Split.TRAIN, 1)
    assert "canary" not in repr(full)
    bare = record(751)
    del bare["chat_logs"], bare["annotations"]
    for camper in bare["participant_info"].values():
        for field in ("demographics", "personality", "outcomes"):
            del camper[field]
    assert game(write(tmp_path, [bare])).scenarios(Split.TRAIN, 1) == full


def test_the_hub_numbers_dialogues_by_their_rows(
    tmp_path: Path, publish: Callable[..., None]
) -> None:
    records = [record(i, swapped=i % 3 == 0) for i in range(60)]
    rows = [{"participant_info": r["participant_info"], "annotations": []} for r in records]
    publish(HUB_ID, "train", rows)
    folder, hub = game(write(tmp_path, records)), Casino(CasinoOptions(source="hub"))
    for split in Split:
        n = folder.load_report(split).counts[f"{split.value}_scenarios"]
        assert n > 0
        assert hub.scenarios(split, n) == folder.scenarios(split, n)
    assert hub.load_report(Split.TRAIN).files == (f"{HUB_ID}, split train",)


def test_the_split_is_by_number_and_does_not_move_with_the_file(tmp_path: Path) -> None:
    assert all(sources.campsite_split(n) is Split.TRAIN for n in TRAIN_IDS)
    assert all(sources.campsite_split(n) is Split.HELDOUT for n in HELDOUT_IDS)
    splits = [sources.campsite_split(n) for n in range(1030)]
    assert (splits.count(Split.TRAIN), splits.count(Split.HELDOUT)) == (875, 155)
    part = game(write(tmp_path, [record(n) for n in (*HELDOUT_IDS, 751)]))
    assert len(part.scenarios(Split.HELDOUT, 3)) == 3
    with pytest.raises(ConfigError, match="casino has 1 train kernels, 2 were asked for"):
        part.scenarios(Split.TRAIN, 2)


def test_missing_data_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"casino: no data folder was given.*casino\.json"):
        Casino().scenarios(Split.TRAIN, 1)
    with pytest.raises(MissingDataError, match=r"looked for casino\.json"):
        game(str(tmp_path)).scenarios(Split.TRAIN, 1)
    (tmp_path / "casino").mkdir()
    write(tmp_path / "casino", [record(751)])
    assert len(game(str(tmp_path)).scenarios(Split.TRAIN, 1)) == 1


def _broken(**change: Any) -> dict[str, Any]:
    broken = record(5)
    broken["participant_info"]["mturk_agent_2"].update(change)
    return broken


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (record(3), "record 1: dialogue_id is 3, not a number of its own"),
        ({**record(5), "dialogue_id": "5"}, "record 1: dialogue_id is '5'"),
        ({"dialogue_id": 5}, "record 1: there is no 'participant_info'"),
        (
            {"dialogue_id": 5, "participant_info": {"mturk_agent_1": {}}},
            "record 1: there is no 'value2issue'",
        ),
        ("text", "record 1: dialogue_id is None"),
        (_broken(value2issue={"High": "Food", "Low": "Water"}), "there is no 'Medium'"),
        (
            _broken(value2issue={"High": "Food", "Medium": "Food", "Low": "Water"}),
            "the priorities are ('Food', 'Food', 'Water'), not Food, Water, Firewood",
        ),
        (_broken(value2issue=7), "record 1: "),
        (_broken(value2reason={"High": "a", "Medium": " ", "Low": "c"}), "not three texts"),
    ],
)
def test_a_broken_record_is_named(tmp_path: Path, second: Any, says: str) -> None:
    env = game(write(tmp_path, [record(3), second]))
    with pytest.raises(DataError, match="1 of 2 records are wrong") as raised:
        env.scenarios(Split.TRAIN, 1)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no JSON text"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"{}", "no list of dialogues"),
        (b"[]", "it is empty"),
    ],
)
def test_what_is_no_data_set_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "casino.json").write_bytes(content)
    with pytest.raises(DataError, match=says):
        game(str(tmp_path)).scenarios(Split.TRAIN, 1)


@pytest.mark.data
def test_counts_of_the_real_file(data_dir: str) -> None:
    env = game(data_dir)
    report = env.load_report(Split.TRAIN)
    assert (report.rows, report.scenarios) == (1030, 1030)
    assert report.published == {"casino.json": True}
    assert report.counts == {
        "reasons": 6180,
        "reasons_with_outer_blanks": 789,
        "reasons_with_final_dot": 3364,
        "reasons_with_curly_quotes": 5,
        "equal_orders": 257,
        "second_camper_first": 526,
        "train_scenarios": 875,
    }
    train, held = env.scenarios(Split.TRAIN, 875), env.scenarios(Split.HELDOUT, 155)
    assert not {k.kernel_id for k in train} & {k.kernel_id for k in held}
    lengths = {
        len(reason)
        for k in (*train, *held)
        for who in ("agent", "partner")
        for reason in k.facts[f"{who}_reasons"]
    }
    assert (min(lengths), max(lengths)) == (16, 443)
    assert "casino-938" in {k.kernel_id for k in held}
    assert env.scenarios(Split.TRAIN, 100) == train[:100]


@pytest.mark.data
def test_no_reason_in_a_prompt_ends_in_a_blank_or_spoils_the_boxes(data_dir: str) -> None:
    env = game(data_dir)
    for kernel in env.scenarios(Split.TRAIN, 875):
        for role in Role:
            prompt = env.view(kernel, role, ()).system
            assert "( " not in prompt
            assert " )" not in prompt
            assert len(boxed.boxes(prompt)) == 5
