"""Files as they come in practice, the same for every game that reads some."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

import invented
from iterpo.domain import Scenario, Split
from iterpo.environments import make, sources
from iterpo.errors import DataError

FILES = {
    "craigslist": (invented.write_listings, "train.csv"),
    "deal_or_no_deal": (invented.write_deals, "train.txt"),
    "casino": (invented.write_campsites, "casino.json"),
}


@pytest.fixture
def data(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a game's invented data; the path of one of its files."""

    def write(name: str) -> Path:
        writer, file = FILES[name]
        writer(tmp_path, 1030)
        return tmp_path / file

    return write


def _scenarios(name: str, path: Path) -> tuple[Scenario, ...]:
    return make(name, data_dir=str(path.parent)).scenarios(Split.TRAIN, 20)


@pytest.mark.parametrize("name", FILES)
def test_a_byte_order_mark_and_other_line_ends_change_nothing(
    data: Callable[[str], Path], name: str
) -> None:
    path = data(name)
    plain, raw = _scenarios(name, path), path.read_bytes()
    path.write_bytes(b"\xef\xbb\xbf" + raw.replace(b"\n", b"\r\n"))
    assert _scenarios(name, path) == plain


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda raw: gzip.compress(raw), "not UTF-8 text .it is compressed: unpack it"),
        (lambda raw: raw.decode().encode("utf-16"), "not UTF-8 text"),
        (lambda raw: raw[:300] + b"\xe9\xff" + raw[300:], "not UTF-8 text"),
        (lambda raw: raw[: len(raw) * 2 // 3], "line|row"),
        (lambda _: b"", "empty|Expecting value"),
        (lambda _: b"[" * 100_000, "no column|line 1|recursion"),
        (lambda _: b"version https://git-lfs.github.com/spec/v1\n", "no column|line 1|Expecting"),
    ],
    ids=["gzip", "utf-16", "latin-1", "cut off", "empty", "deep", "pointer"],
)
@pytest.mark.parametrize("name", FILES)
def test_a_broken_file_is_named(
    data: Callable[[str], Path], name: str, change: Callable[[bytes], bytes], says: str
) -> None:
    path = data(name)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=says) as raised:
        _scenarios(name, path)
    assert str(path) in str(raised.value)


def test_a_folder_in_place_of_a_file_is_no_reason_to_train_on_another(
    data: Callable[[str], Path],
) -> None:
    path = data("craigslist")
    path.unlink()
    assert _scenarios("craigslist", path), "dev stands in for a training file that is absent"
    path.mkdir()
    with pytest.raises(DataError, match=r"train\.csv can't be read: Is a directory"):
        _scenarios("craigslist", path)


def test_an_unreadable_file_is_named(
    data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = data("casino")

    def denied(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(DataError, match="can't be read: Permission denied; check"):
        sources.read_campsites(path)


def test_numbers_of_thousands_of_digits_are_no_counts(data: Callable[[str], Path]) -> None:
    path = data("deal_or_no_deal")
    path.write_text(path.read_text().replace("<input> ", f"<input> {'9' * 5000}", 1))
    with pytest.raises(DataError, match="line 1: a number of thousands of digits"):
        _scenarios("deal_or_no_deal", path)
