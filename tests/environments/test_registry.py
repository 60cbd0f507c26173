"""Environments by name, and options that are checked before anything runs."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from iterpo import environments
from iterpo.domain import plugins
from iterpo.environments.ultimatum import Ultimatum
from iterpo.errors import ConfigError, UnknownNameError


def test_every_registered_game_can_be_made() -> None:
    assert {"deal_or_no_deal", "ultimatum"} <= set(environments.names())
    for name in environments.REGISTRY:
        env = environments.make(name, prompt_style="compact")
        assert env.name == name
        assert env.options.prompt_style == "compact"  # type: ignore[attr-defined]


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        UnknownNameError, match="no environment 'chess'; there are alliance, casino, c"
    ):
        environments.make("chess")


def test_all_option_mistakes_come_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        environments.make("deal_or_no_deal", eco="none", echo="loud", reminder=1, data_dir=3)
    message = str(raised.value)
    for part in (
        "unknown option 'eco'",
        "did you mean 'echo'?",
        "'echo' is 'loud'; accepted: both | ",
        "'reminder' is 1; accepted: true | false",
        "'data_dir' is 3; accepted: text | null",
    ):
        assert part in message


def test_whole_numbers_are_numbers_and_switches_are_not() -> None:
    env = environments.make("craigslist", reward_cap=1)
    assert env.options.reward_cap == 1  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"'reward_cap' is True; accepted: a number \| null"):
        environments.make("craigslist", reward_cap=True)
    with pytest.raises(ConfigError, match=r"'prompt_decimals' is 2\.0; accepted: a whole number"):
        environments.make("job_interview", prompt_decimals=2.0)


def test_other_packages_add_theirs_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("theirs", "iterpo.environments.ultimatum:Ultimatum", environments.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry])
    assert "theirs" in environments.names()
    assert isinstance(environments.make("theirs", holdout="none"), Ultimatum)


def test_importing_the_games_imports_neither_numpy_nor_torch() -> None:
    code = (
        "import sys, iterpo.environments as e; [e.make(n) for n in e.REGISTRY];"
        "print(*{'numpy', 'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
