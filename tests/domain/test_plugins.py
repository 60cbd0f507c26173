"""A name that nothing is registered under, or whose package is broken, is one clear message."""

from __future__ import annotations

from pathlib import Path

import pytest

from iterpo.domain.plugins import Plugins
from iterpo.errors import MissingExtraError, UnknownNameError
from testing.packages import install

KINDS = Plugins("number", "iterpo.numbers", {"half": "fractions:Fraction"})
TOML = """
[project]
name = "more-numbers"
version = "1"
[project.entry-points."iterpo.numbers"]
exact = "decimal:Decimal"
half = "decimal:Decimal"
away = "nowhere_at_all:Number"
gone = "decimal:Hexadecimal"
"""


@pytest.fixture
def more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, {}, TOML)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("more")
def test_ours_come_first_and_win() -> None:
    assert KINDS.names() == ("half", "away", "exact", "gone")
    assert KINDS.load("half").__name__ == "Fraction"
    assert KINDS.load("exact").__name__ == "Decimal"
    assert KINDS.unknown("exact") == ""


def test_an_unknown_name_is_told_with_what_there_is_and_what_to_install() -> None:
    with pytest.raises(UnknownNameError) as caught:
        KINDS.load("exact")
    told = str(caught.value)
    assert told.startswith("there is no number 'exact'; there are half. If another package")
    assert "pip install PACKAGE" in told
    assert "'iterpo.numbers'" in told
    assert "Did you mean half?" in KINDS.unknown("hlaf")


@pytest.mark.usefixtures("more")
@pytest.mark.parametrize(
    ("name", "why"),
    [("away", "No module named 'nowhere_at_all'"), ("gone", "no attribute 'Hexadecimal'")],
)
def test_a_broken_package_is_named_with_what_it_lacks(name: str, why: str) -> None:
    with pytest.raises(MissingExtraError) as caught:
        KINDS.load(name)
    assert f"number '{name}' of package more-numbers can't be loaded" in str(caught.value)
    assert why in str(caught.value)
