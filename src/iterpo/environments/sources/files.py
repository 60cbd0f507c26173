"""Where a data set lies, and what was found in it.

Nothing is downloaded unasked and nothing is shipped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from iterpo.errors import DataError, MissingDataError

__all__ = ["LoadReport", "Parsed", "file_reader", "find", "locate"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What was read, what was odd, what was left out."""

    files: tuple[str, ...]
    """Files read."""
    rows: int
    """Records in them."""
    scenarios: int
    """Distinct scenarios, whichever side is which."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of records, or of scenarios, per oddity."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """File name -> checksum of what was read."""
    published: Mapping[str, bool] = field(default_factory=dict)
    """File name -> whether it is, byte for byte, the published file; False is worth a look."""

    def adding(self, **counts: int) -> LoadReport:
        """The report with further counts."""
        return replace(self, counts={**self.counts, **counts})

    def checked(self, name: str, checksum: str, published: Mapping[str, str]) -> LoadReport:
        """The report with the checksum of one more file.

        Args:
            name: File that was read.
            checksum: Its SHA-256.
            published: File name -> SHA-256 of the published file.
        """
        return replace(
            self,
            sha256={**self.sha256, name: checksum},
            published={**self.published, name: published.get(name) == checksum},
        )


Parsed = tuple[tuple[T, ...], LoadReport]
"""What a file holds, and what was found in it."""


def file_reader(
    parse: Callable[[Path, str], Parsed[T]], published: Mapping[str, str]
) -> Callable[[Path], Parsed[T]]:
    """A reader of files from a parser of their text; a file that stays the same is read once.

    The reader raises DataError if a file can't be read or is not UTF-8 text. It skips a byte-order
    mark, and puts the file's checksum into the report.

    Args:
        parse: Takes the path, for messages, and the text.
        published: File name -> SHA-256 of the published file.
    """

    @lru_cache(maxsize=8)
    def unchanged(path: Path, _mtime: int, _size: int) -> Parsed[T]:
        raw = _bytes_of(path)
        kept, report = parse(path, _text_of(path, raw))
        checksum = hashlib.sha256(raw).hexdigest()
        return kept, report.checked(path.name, checksum, published)

    def read(path: Path) -> Parsed[T]:
        stat = path.stat()
        return unchanged(path, stat.st_mtime_ns, stat.st_size)

    return read


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} can't be read: {error.strerror}; check that it is a file you may read"
        ) from None


def _text_of(path: Path, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        packed = " (it is compressed: unpack it)" if raw.startswith(b"\x1f\x8b") else ""
        raise DataError(f"{path} is not UTF-8 text{packed}: {error}") from None


def locate(data_dir: str | None, game: str, folder: str, names: Sequence[str]) -> tuple[Path, ...]:
    """Paths of a game's files, in ``data_dir`` itself or in its sub-folder ``folder``.

    Raises:
        MissingDataError: if no folder was given, or a file is absent.
    """
    wanted = ", ".join(names)
    if not data_dir:
        raise MissingDataError(
            f"{game}: no data folder was given. It needs {wanted} in the native format; "
            "set the option data_dir (for commands also the variable ITERPO_DATA) to the folder "
            f"that holds them (or that holds {folder}/)"
        )
    base = Path(data_dir).expanduser()
    places = (base / folder, base)
    for place in places:
        paths = tuple(place / name for name in names)
        if all(path.is_file() for path in paths):
            return paths
    looked = " and ".join(str(place.absolute()) for place in places)
    raise MissingDataError(
        f"{game}: data_dir is {data_dir!r}; looked for {wanted} in {looked} and did not find "
        "all of them. Put the files there or set the option data_dir to where they are"
    )


def find(data_dir: str | None, folders: Sequence[str], names: Sequence[str]) -> Path | None:
    """The first of ``names`` that is in ``data_dir`` or in sub-folders of these names, or None.

    Args:
        data_dir: Where to look; None finds nothing.
        folders: Sub-folders, which may lie in one another in this order.
        names: File names, the preferred one first.
    """
    if not data_dir:
        return None
    base = Path(data_dir).expanduser()
    tops = (base / folders[0], base)
    places = [*tops, *(top / folder for top in tops for folder in folders[1:])]
    paths = (place / name for name in names for place in places)
    return next((path for path in paths if path.exists()), None)
