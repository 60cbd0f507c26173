"""A name that nothing is registered under, or whose package is broken, is one clear message."""

from __future__ import annotations

from pathlib import Path

import pytest

from iterpo.domain.plugins import Plugins, unchecked
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
cut = "cut_off:Number"
mine = "mine.parts:Number"
"""


@pytest.fixture
def more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "cut_off.py": "class Number(\n",
        "mine/__init__.py": "",
        "mine/parts.py": "Number = int",
    }
    install(tmp_path, files, TOML)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("more")
def test_ours_come_first_and_win() -> None:
    assert KINDS.names() == ("half", "away", "cut", "exact", "gone", "mine")
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
    [
        ("away", "No module named 'nowhere_at_all'"),
        ("gone", "no attribute 'Hexadecimal'"),
        ("cut", "SyntaxError: '(' was never closed"),
    ],
)
def test_a_broken_package_is_named_with_what_it_lacks(name: str, why: str) -> None:
    with pytest.raises(MissingExtraError) as caught:
        KINDS.load(name)
    assert f"number '{name}' of package more-numbers can't be loaded" in str(caught.value)
    assert why in str(caught.value)


@pytest.mark.usefixtures("more")
def test_a_name_that_is_ours_is_told_to_whoever_registers_it() -> None:
    (told,) = KINDS.shadowed()
    assert told == "the name half is iterpo's own; that of package more-numbers is not used"


@pytest.mark.usefixtures("more")
def test_the_code_of_a_plugin_is_known_by_all_files_of_its_package(tmp_path: Path) -> None:
    assert KINDS.code("half") is None, "ours"
    assert KINDS.code("nothing") is None
    package, first = KINDS.code("mine") or ("", "")
    assert package == "more-numbers"
    assert first.startswith("1 (code ")
    assert KINDS.code("mine") == (package, first)
    (tmp_path / "mine" / "helper.py").write_text("x = 1")
    assert KINDS.code("mine") != (package, first)
    (tmp_path / "mine" / "helper.py").unlink()
    (tmp_path / "mine" / "notes.txt").write_text("no code")
    assert KINDS.code("mine") == (package, first)
    alone = KINDS.code("cut")
    (tmp_path / "cut_off.py").write_text("class Number: pass\n")
    assert KINDS.code("cut") != alone
    away = KINDS.code("away")
    assert away is not None, "it is registered, whether or not it can be found"


def test_names_are_not_looked_up_where_old_results_are_read() -> None:
    with unchecked():
        assert KINDS.unknown("uninstalled") == ""
    assert KINDS.unknown("uninstalled") != ""
