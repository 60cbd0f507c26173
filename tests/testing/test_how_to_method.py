"""The how-to on methods can be followed word for word: its files and commands are the page's."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

from architecture.sources import named_blocks
from iterpo import methods
from iterpo.domain import Message, State
from iterpo.errors import ConfigError
from iterpo.models.backbone import load
from iterpo.models.hub import base_policy
from iterpo.testing import check_method
from iterpo.testing.tiny_model import tiny_model
from testing.packages import install, run

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-method.md"
BLOCKS = named_blocks(PAGE)
MOST_LINES = 80


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package, in this process too; forgotten afterwards."""
    install(tmp_path, BLOCKS, BLOCKS["pyproject.toml"])
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [n for n in sys.modules if n.partition(".")[0] == "reward_weighted"]:
        del sys.modules[name]


def test_the_example_is_short_found_by_name_and_keeps_its_promises(installed: Path) -> None:
    assert len(BLOCKS["reward_weighted/__init__.py"].splitlines()) < MOST_LINES
    assert "reward_weighted" in methods.names()
    report = check_method("reward_weighted", options={"learning_rate": 1e-2})
    assert "options" in report.checked
    options = importlib.import_module("reward_weighted").Options
    check = methods.make("reward_weighted", {"beta": 1.0})
    assert check.options == options(beta=1.0)  # type: ignore[attr-defined]
    for mistake in ("beta", "learning_rate"):
        with pytest.raises(ConfigError, match=mistake):
            methods.make("reward_weighted", {mistake: -1.0})


def test_new_responses_are_drawn_as_the_page_says(tmp_path: Path) -> None:
    """n for each state, no two from the same seed, and the same ones again."""
    known: dict[str, Any] = {}
    exec(BLOCKS["draw"], known)
    place = SimpleNamespace(backbone=load, q=SimpleNamespace(seed=3))
    policy = base_policy(str(tiny_model(tmp_path / "tiny")))
    states = [State(f"c{i}", "k", 1, (Message("user", "hello"),)) for i in range(2)]
    drawn = known["draw"](policy, states, 3, place)
    assert len({r.token_ids for r in drawn}) == len(drawn) == 6
    assert drawn == known["draw"](policy, states, 3, place)


@pytest.mark.slow
def test_its_own_tests_and_commands_work(installed: Path) -> None:
    shutil.rmtree(installed / "runs", ignore_errors=True)
    told = run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_reward_weighted.py")
    assert "2 passed" in told
    for block, expected in (("run", "imitate every turn"), ("run study", "reward_weighted")):
        program, *arguments = BLOCKS[block].split()
        assert program == "iterpo"
        assert expected in " ".join(run(installed, "-m", "iterpo", *arguments).split())
