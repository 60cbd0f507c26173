"""Help: fast, without torch, and teaching by example."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from iterpo.cli.main import app

HEAVY = {"torch", "transformers", "trl", "peft", "datasets", "numpy", "yaml"}


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


COMMANDS = list(commands(typer.main.get_command(app)))


def test_the_commands_of_the_documentation_exist() -> None:
    names = {" ".join(path) for path, _ in COMMANDS}
    assert names >= {
        *("demo", "run", "collect", "fit-q", "improve", "measure", "show", "chat"),
        *("envs", "envs show", "methods", "models", "config check", "config schema", "config show"),
    }


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(p) for p, _ in COMMANDS])
def test_every_command_explains_itself_with_an_example(path: tuple[str, ...], command: Any) -> None:
    if command.hidden:
        return
    assert command.help
    assert len(command.help) > 20
    if hasattr(command, "commands") and not command.invoke_without_command:
        return
    assert f"iterpo {' '.join(path)}" in (command.epilog or ""), "an example of this very command"
    for parameter in command.params:
        if parameter.name not in ("help", "install_completion", "show_completion"):
            assert parameter.help, f"{' '.join(path)}: {parameter.name} is not explained"


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(p) for p, _ in COMMANDS])
def test_examples_are_accepted_by_the_parser(path: tuple[str, ...], command: Any) -> None:
    """An example with a misspelt option would teach wrong things."""
    epilog = (command.epilog or "").replace("\\[", "[")
    for line in re.findall(r"^iterpo .*$", epilog, re.MULTILINE):
        words = line.partition(" > ")[0].split()[1:]
        group = typer.main.get_command(app)
        while words and hasattr(group, "commands") and words[0] in group.commands:
            group = group.commands[words.pop(0)]
        group.make_context("x", words, resilient_parsing=False).close()


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["envs", "show", "--help"]])
def test_help_loads_no_heavy_package(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from iterpo.cli.main import app\n"
        f"try: app({arguments!r})\n"
        "except SystemExit as end: assert not end.code\n"
        f"bad = {HEAVY!r} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "iterpo" in done.stdout


def test_help_takes_less_than_half_a_second() -> None:
    """Best of five, so that a busy machine is not taken for a slow start."""
    best = 9.0
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "iterpo.cli.main", "--help"], check=True, capture_output=True
        )
        best = min(best, time.perf_counter() - start)
    assert best < 0.5
