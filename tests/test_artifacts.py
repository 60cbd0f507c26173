"""Sealed folders: complete or unfinished, never half believed."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from iterpo.artifacts import build, is_sealed, open_sealed, seal, write_atomic
from iterpo.errors import ArtifactError, StorageFullError


def _sealed(folder: Path) -> Path:
    with build(folder, "thing", {"n": 1}) as inside:
        (inside / "a.txt").write_text("alpha")
        (inside / "deep").mkdir()
        (inside / "deep" / "b.txt").write_text("beta")
    return folder


def test_a_sealed_folder_opens_with_its_facts(tmp_path: Path) -> None:
    manifest = open_sealed(_sealed(tmp_path / "x"), "thing")
    assert manifest["facts"] == {"n": 1}
    assert set(manifest["files"]) == {"a.txt", "deep/b.txt"}


def test_an_interrupted_build_is_unfinished_and_starts_anew(tmp_path: Path) -> None:
    folder = tmp_path / "x"

    def interrupted() -> None:
        with build(folder, "thing", {}) as inside:
            (inside / "left-over.txt").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not is_sealed(folder)
    with pytest.raises(ArtifactError, match="unfinished"):
        open_sealed(folder)
    _sealed(folder)
    assert not (folder / "left-over.txt").exists()


@pytest.mark.parametrize("damage", ["truncate", "edit", "remove", "manifest"])
def test_damage_is_named(tmp_path: Path, damage: str) -> None:
    folder = _sealed(tmp_path / "x")
    target = folder / "deep" / "b.txt"
    if damage == "truncate":
        target.write_text("bet")
    elif damage == "edit":
        target.write_text("beth")
    elif damage == "remove":
        target.unlink()
    else:
        target = folder / "manifest.json"
        target.write_text(target.read_text()[:30])
    with pytest.raises(ArtifactError, match=r"(?s)b\.txt|manifest\.json") as caught:
        open_sealed(folder)
    assert "resume" in str(caught.value)


def test_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="'thing', but 'policy'"):
        open_sealed(_sealed(tmp_path / "x"), "policy")


def test_inner_manifests_are_covered_by_the_outer_one(tmp_path: Path) -> None:
    _sealed(tmp_path / "outer" / "inner")
    seal(tmp_path / "outer", "outer", {})
    (tmp_path / "outer" / "inner" / "manifest.json").write_text("{}")
    with pytest.raises(ArtifactError, match="inner"):
        open_sealed(tmp_path / "outer")


def test_same_work_same_bytes(tmp_path: Path) -> None:
    one, two = _sealed(tmp_path / "one"), _sealed(tmp_path / "two")
    assert (one / "manifest.json").read_bytes() == (two / "manifest.json").read_bytes()
    assert "time" not in json.loads((one / "manifest.json").read_text())


def test_a_full_disk_keeps_the_old_file_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.txt"
    write_atomic(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFullError, match=r"(?s)disk is full.*--resume"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.txt"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "{}",
        '{"kind": "k", "facts": {}, "files": []}',
        '{"kind": "k", "facts": 3, "files": {}}',
        '{"kind": "k", "facts": {}, "files": {"x": 3}}',
    ],
)
def test_a_manifest_of_another_shape_is_corrupt(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ArtifactError, match="corrupt"):
        open_sealed(tmp_path)
