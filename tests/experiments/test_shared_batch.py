"""Taking a round-0 batch: the same bytes, checked, and safe against kills and damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iterpo.artifacts import seal, write_atomic
from iterpo.errors import ArtifactError
from iterpo.experiments import shared_batch
from iterpo.experiments.shared_batch import FIRST, ORIGIN, origin_of, take_batch


def collected(run: Path) -> Path:
    for split in ("train", "heldout"):
        write_atomic(run / FIRST / split / "conversations.jsonl", f"{split}\n")
        seal(run / FIRST / split, "conversations", {})
    seal(run / FIRST, "deploy", {"policy": "r0"})
    row = {"phase": FIRST, "wall_s": 7.5, "peak_memory_mb": 1.0}
    write_atomic(run / "timings.jsonl", json.dumps(row) + "\n")
    return run


def files(run: Path) -> dict[str, bytes]:
    place = run / FIRST
    return {str(p.relative_to(place)): p.read_bytes() for p in place.rglob("*") if p.is_file()}


def test_the_batch_is_the_same_and_says_where_it_comes_from(tmp_path: Path) -> None:
    source = collected(tmp_path / "iterpo" / "seed-1")
    target = tmp_path / "mt_kto" / "seed-1"
    take_batch(source, target)
    assert files(target) == files(source)
    origin = origin_of(target)
    assert origin is not None
    assert (origin["run"], origin["wall_s"]) == ("../../iterpo/seed-1", 7.5)
    assert origin_of(source) is None


@pytest.mark.parametrize("links", [True, False])
def test_deleting_or_remaking_one_leaves_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("another disk")

    if not links:
        monkeypatch.setattr(shared_batch.os, "link", refuse)
    source = collected(tmp_path / "a")
    before = files(source)
    take_batch(source, tmp_path / "b")
    write_atomic(source / FIRST / "train" / "conversations.jsonl", "other\n")
    assert files(tmp_path / "b") == before


def test_a_damaged_or_unfinished_batch_is_not_taken(tmp_path: Path) -> None:
    source = collected(tmp_path / "a")
    (source / FIRST / "train" / "conversations.jsonl").write_text("traim\n")
    with pytest.raises(ArtifactError, match=r"train/conversations\.jsonl"):
        take_batch(source, tmp_path / "b")
    assert not (tmp_path / "b" / FIRST).exists()
    with pytest.raises(ArtifactError, match="unfinished"):
        take_batch(tmp_path / "nothing", tmp_path / "b")


def test_a_batch_that_was_exchanged_is_noticed(tmp_path: Path) -> None:
    take_batch(collected(tmp_path / "a"), tmp_path / "b")
    seal(tmp_path / "b" / FIRST, "deploy", {"policy": "another"})
    with pytest.raises(ArtifactError, match="not the batch that was taken"):
        origin_of(tmp_path / "b")


@pytest.mark.parametrize("moment", ["copy", "note"])
def test_killed_while_taking_it_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    source, target = collected(tmp_path / "a"), tmp_path / "b"
    write_atomic(target / FIRST / "train" / "parts" / "00000.jsonl", "half a batch of its own\n")

    def kill(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        owner = (shared_batch.os, "link") if moment == "copy" else (shared_batch, "write_atomic")
        m.setattr(*owner, kill)
        with pytest.raises(KeyboardInterrupt):
            take_batch(source, target)
    assert not (target / FIRST / "manifest.json").exists()
    take_batch(source, target)
    assert files(target) == files(source)
    assert (target / ORIGIN).exists()
