"""A folder of files sealed by a manifest that is written last.

A folder without its manifest is unfinished; one with it is complete and can be verified. So
resuming is a look-up, and a truncated or edited file is noticed before anything is built on it.
Manifests hold no time stamps: the same work gives the same bytes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from iterpo.errors import ArtifactError, StorageFullError

__all__ = [
    "MANIFEST",
    "build",
    "disk_is_full",
    "file_sha256",
    "is_sealed",
    "naming_full_disk",
    "open_sealed",
    "seal",
    "write_atomic",
]

MANIFEST = "manifest.json"


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, as hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write a file so that a crash leaves either the old or the new content, never a part.

    Raises:
        StorageFullError: if the disk is full; the old content stays.
    """
    raw = data.encode() if isinstance(data, str) else data
    part = path.with_name(f".{path.name}.part")
    with naming_full_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("wb") as stream:
                stream.write(raw)
                stream.flush()
                os.fsync(stream.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def seal(folder: Path, kind: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Hash every file of ``folder`` and write its manifest; the folder is complete from then on.

    Args:
        folder: Folder with the finished files.
        kind: What it holds, e.g. ``conversations`` or ``policy``.
        facts: JSON values worth keeping beside the files.
    """
    files = {
        str(p.relative_to(folder)): {"bytes": p.stat().st_size, "sha256": file_sha256(p)}
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p != folder / MANIFEST and not p.name.endswith(".part")
    }
    manifest = {"kind": kind, "facts": dict(facts), "files": files}
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    return manifest


def is_sealed(folder: Path) -> bool:
    """Whether the folder's work was finished."""
    return (folder / MANIFEST).is_file()


def open_sealed(folder: Path, kind: str | None = None) -> dict[str, Any]:
    """The manifest of a finished folder, after checking every file against it.

    Raises:
        ArtifactError: if the manifest is absent or unreadable, of another kind, or a file is
            missing, truncated or changed; the message names the file.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise ArtifactError(
            f"{folder} holds no {MANIFEST}: it is unfinished or was not written by iterpo. "
            "Run the command that makes it again (with --resume), or name another folder."
        )
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        files = {
            str(name): {"bytes": int(fact["bytes"]), "sha256": str(fact["sha256"])}
            for name, fact in manifest["files"].items()
        }
        found, _ = manifest["kind"], manifest["facts"].keys()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{path} is corrupt ({error}); delete {folder} and resume.") from error
    if kind is not None and found != kind:
        raise ArtifactError(f"{folder} holds {found!r}, but {kind!r} is needed here.")
    for name, fact in files.items():
        _check(folder, name, fact)
    return manifest


@contextmanager
def build(folder: Path, kind: str, facts: Mapping[str, Any]) -> Iterator[Path]:
    """Fill an artefact folder from scratch; it is sealed only if the block ends well.

    Left-overs of an interrupted attempt are removed first. ``facts`` is read when the block
    ends, so a dict may be filled inside it.
    """
    with naming_full_disk(folder):
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        yield folder
        seal(folder, kind, facts)


def disk_is_full(error: OSError) -> bool:
    """Whether nothing could be written for want of space, on the disk or in a quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def naming_full_disk(path: Path) -> Iterator[None]:
    """Turn "no space left" into an error that says what to do; ``path`` is what was written.

    Raises:
        StorageFullError: if the disk is full.
    """
    try:
        yield
    except OSError as error:
        if not disk_is_full(error):
            raise
        raise StorageFullError(
            f"the disk is full while writing {path}. Everything finished before is kept: "
            "free some space and run the same command with --resume."
        ) from error


def _check(folder: Path, name: str, fact: Mapping[str, Any]) -> None:
    path = folder / name
    # All that this manifest seals goes together: deleting less would leave it sealed and broken.
    remedy = f"delete {folder} and resume; it will be made again."
    if not path.is_file():
        raise ArtifactError(f"{path} is missing, though its manifest lists it; {remedy}")
    size = path.stat().st_size
    if size != fact["bytes"]:
        raise ArtifactError(
            f"{path} has {size} bytes, its manifest says {fact['bytes']}: truncated or changed; "
            + remedy
        )
    if file_sha256(path) != fact["sha256"]:
        raise ArtifactError(f"{path} does not match its checksum: corrupt or edited; {remedy}")
