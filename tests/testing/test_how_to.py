"""The how-to can be followed word for word: its files and commands are taken from the page."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from architecture.sources import named_blocks
from iterpo import environments
from iterpo.domain import Split
from iterpo.errors import ConfigError
from iterpo.testing import check_environment
from testing.packages import install, run

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-an-environment.md"
BLOCKS = named_blocks(PAGE)
MOST_LINES = 60


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    install(tmp_path, BLOCKS, BLOCKS["pyproject.toml"])
    return tmp_path


@pytest.fixture
def importable(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package in this process; forgotten afterwards."""
    monkeypatch.syspath_prepend(installed)
    yield installed
    for name in [n for n in sys.modules if n.partition(".")[0] == "scheduling"]:
        del sys.modules[name]


def test_the_example_is_complete_and_short() -> None:
    lines = [line for line in BLOCKS["scheduling/__init__.py"].splitlines() if line.strip()]
    code = "\n".join(lines)
    assert len(lines) - code[: code.index('"""\n', 5)].count("\n") <= MOST_LINES


def test_it_is_found_by_name_and_keeps_its_promises(importable: Path) -> None:
    assert "scheduling" in {e.name for e in entry_points(group=environments.GROUP)}
    assert "scheduling" in environments.names()
    env = environments.make("scheduling")
    test = importlib.import_module("test_scheduling")
    report = check_environment(env, speaker=test.Chancer, reward_range=(0, 1))
    assert set(report.unchecked) == {"partner"}
    assert {"agreed", "turn_limit"} <= set(report.endings)
    assert report.checked["secrecy"] > 100
    with pytest.raises(ConfigError, match=r"unknown option 'limit' \(there are none\)"):
        environments.make("scheduling", limit=3)
    del sys.modules["test_scheduling"]


def test_its_own_tests_pass(installed: Path) -> None:
    said = run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_scheduling.py")
    assert "2 passed" in said


@pytest.mark.parametrize("command", BLOCKS["run"].splitlines())
def test_its_commands_work(installed: Path, command: str) -> None:
    program, *arguments = command.split()
    assert program == "iterpo"
    said = run(installed, "-m", "iterpo", *arguments)
    assert "Scheduling: two people look for a time to meet" in " ".join(said.split())
    if "show" in arguments:
        for part in (
            "It has no options.",
            "sch-42-train-0",
            "what the agent sees",
            "What each time is worth to you",
        ):
            assert part in said


def test_its_options_are_options(importable: Path) -> None:
    options = importlib.import_module("scheduling.options")
    made = options.SchedulingWithOptions(options.SchedulingOptions(limit=4, prompt_style="compact"))
    test = importlib.import_module("test_scheduling")
    report = check_environment(made, speaker=test.Chancer, plays=10, reward_range=(0, 1))
    assert report.endings["turn_limit"] > 0
    scenario = made.scenarios(Split.TRAIN, 1)[0]
    assert "Find a time" not in made.view(scenario, environments.base.Role.AGENT, ()).system
    del sys.modules["test_scheduling"]


def test_its_partner_bargains(importable: Path) -> None:
    partner = importlib.import_module("scheduling.partner")
    report = check_environment(partner.SchedulingWithPartner(), plays=70, reward_range=(0, 1))
    assert not report.unchecked
    assert report.checked["partner"] > 100
    protocol: Any = importlib.import_module("iterpo.agents.scripted").Bargain
    wanted = {n for n in vars(protocol) if not n.startswith("_")}
    assert wanted - {"aspirations"} <= set(vars(partner.SlotBargain))


def test_the_game_with_a_partner_can_be_played(tmp_path: Path) -> None:
    toml = BLOCKS["pyproject.toml"].replace(
        '"scheduling:Scheduling"', '"scheduling.partner:SchedulingWithPartner"'
    )
    install(tmp_path, BLOCKS, toml)
    _, *arguments = BLOCKS["run with partner"].split()
    said = run(tmp_path, "-m", "iterpo", *arguments)
    assert "agreed" in said
