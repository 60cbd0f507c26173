"""Files of conversations: written whole, read back whole, every fault named by line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from iterpo.artifacts import MANIFEST, open_sealed, write_atomic
from iterpo.domain import Conversation
from iterpo.errors import ArtifactError, DataError, MissingDataError
from iterpo.store.records import from_line, to_line

__all__ = ["CONVERSATIONS", "read_conversations", "write_conversations"]

CONVERSATIONS = "conversations.jsonl"
"""Name of the log inside an artefact folder."""


def write_conversations(path: Path, conversations: Iterable[Conversation]) -> None:
    """Write a log of conversations, all or nothing.

    Raises:
        StorageFullError: if the disk is full.
    """
    write_atomic(path, "".join(map(to_line, conversations)))


def read_conversations(path: Path | str) -> tuple[Conversation, ...]:
    """Read a log: a JSON-lines file, or a sealed folder that holds one (checksums verified).

    Raises:
        MissingDataError: if there is no such file.
        ArtifactError: if the file is truncated, or does not match its manifest.
        DataError: if it is no UTF-8 text, or a line is not a conversation (named by number).
    """
    path = Path(path)
    if path.is_dir():
        if (path / MANIFEST).is_file():
            open_sealed(path)
        path = path / CONVERSATIONS
    if not path.is_file():
        raise MissingDataError(
            f"no conversation log at {path}: give a .jsonl file of conversations, or a folder "
            f"with {CONVERSATIONS} (`iterpo collect` writes one)."
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text (byte {error.start}: {error.reason}). One conversation a "
            "line as JSON is expected; convert the file, or name another."
        ) from error
    if text and not text.endswith("\n"):
        raise ArtifactError(
            f"{path} ends in the middle of line {text.count(chr(10)) + 1}: the file was cut off. "
            "Copy it again, or delete that line."
        )
    lines = enumerate(text.split("\n")[:-1], start=1)
    return tuple(from_line(line, f"{path} line {n}") for n, line in lines if line.strip())
