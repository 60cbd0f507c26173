"""Rows from a data-set hub: the Parquet copy of a script, and clear words when nothing comes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from iterpo.environments.sources.hub import hub_rows
from iterpo.errors import DataError, MissingDataError, MissingExtraError

Publish = Callable[..., None]
ROWS = [{"counts": {"n": [1, 2]}, "words": "hello"}, {"counts": {"n": [3, 4]}, "words": "bye"}]


def test_rows_come_from_the_parquet_copy_of_a_script_in_their_order(publish: Publish) -> None:
    publish("owner/deals", "test", ROWS)
    assert hub_rows("owner/deals", "test", ["counts"]) == [
        {"counts": {"n": [1, 2]}},
        {"counts": {"n": [3, 4]}},
    ]


def test_a_configuration_is_a_folder_of_the_parquet_copy(publish: Publish) -> None:
    publish("owner/deals", "train", ROWS, config="dialogues")
    publish("owner/deals", "train", ROWS[:1], config="self_play")
    assert len(hub_rows("owner/deals", "train", ["words"], config="dialogues")) == 2
    assert len(hub_rows("owner/deals", "train", ["words"], config="self_play")) == 1


def test_the_newest_revision_is_used_where_it_needs_no_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    datasets = pytest.importorskip("datasets")
    calls: list[dict[str, Any]] = []

    def load_dataset(path: str, **how: Any) -> Any:
        calls.append(how)
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert len(hub_rows("owner/deals", "test", ["words"], config="dialogues")) == 2
    assert calls == [{"split": "test", "revision": None, "name": "dialogues"}]
    hub_rows("owner/deals", "test", ["words"], revision="abc")
    assert calls[1:] == [{"split": "test", "revision": "abc", "name": None}]


def test_an_unreachable_hub_is_asked_once_and_a_folder_is_suggested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    datasets = pytest.importorskip("datasets")
    calls: list[str] = []

    def load_dataset(path: str, **how: Any) -> Any:
        calls.append(path)
        raise ConnectionError("Couldn't reach it")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(MissingDataError, match=r"owner/deals, split 'test'.*source: folder"):
        hub_rows("owner/deals", "test", ["words"])
    assert calls == ["owner/deals"]


def test_what_was_tried_and_what_is_lacking_is_named(publish: Publish) -> None:
    publish("owner/deals", "test", ROWS)
    with pytest.raises(
        MissingDataError, match=r"newest: RuntimeError.*refs/convert/parquet: ValueError"
    ):
        hub_rows("owner/deals", "validation", ["words"])
    with pytest.raises(DataError, match=r"has no column items \(it has counts, words\)"):
        hub_rows("owner/deals", "test", ["items", "words"])


def test_without_the_package_the_install_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"owner/deals .*pip install 'iterpo\[train\]'"):
        hub_rows("owner/deals", "test", ["words"])
