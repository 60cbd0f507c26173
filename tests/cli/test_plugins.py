"""A plan whose plug-in is missing, broken, or misused is refused before anything is written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cli.conftest import Call
from testing.packages import install

__all__ = ["Call"]

PLAN = "environment: {name: trade}\nmethod: {name: mine, options: {strength: 2}}"
STUDY = """
plan: {rounds: 1}
environments: {ultimatum: {}, trade: {}}
methods: {iterpo: {}, other: {method: {name: mine}}}
"""
BROKEN = """
[project]
name = "our-trade"
version = "1"
[project.entry-points."iterpo.environments"]
trade = "our_trade:Trade"
[project.entry-points."iterpo.methods"]
mine = "our_trade:Mine"
"""


@pytest.fixture(params=["config check plan.yaml", "run plan.yaml", "study run study.yaml"])
def refused(request: pytest.FixtureRequest, call: Call, tmp_path: Path) -> list[str]:
    """Lines of the message, with an installed but broken package where the test asks for it."""
    if "broken" in request.node.name:
        install(tmp_path, {"our_trade/__init__.py": "import nowhere_at_all\n"}, BROKEN)
        request.getfixturevalue("monkeypatch").syspath_prepend(str(tmp_path))
    (tmp_path / "plan.yaml").write_text(PLAN)
    (tmp_path / "study.yaml").write_text(STUDY)
    done = call(*request.param.split())
    assert done.exit_code == 2
    assert "Traceback" not in done.output
    assert not (tmp_path / "runs").exists()
    lines: list[str] = done.stderr.splitlines()
    return lines


def test_what_is_registered_and_what_to_install_is_told(refused: list[str]) -> None:
    assert refused[0].endswith(": 2 mistakes"), "no mistake of the method that it is not"
    for kind, name in (("environment", "trade"), ("method", "mine")):
        (line,) = [x for x in refused[1:] if f"{kind}.name: there is no {kind} '{name}'" in x]
        assert {"environment": "casino, craigslist", "method": "iterpo, mt_kto"}[kind] in line
        assert "pip install PACKAGE" in line
        assert f"'iterpo.{kind}s'" in line


def test_a_broken_package_is_told_with_what_it_lacks(refused: list[str]) -> None:
    assert refused[0].endswith(": 2 mistakes")
    for kind, name in (("environment", "trade"), ("method", "mine")):
        (line,) = [x for x in refused[1:] if f"{kind}.name: {kind} '{name}' of package our-tr" in x]
        assert "No module named 'nowhere_at_all'" in line
        assert "Install what it needs" in line


WORKING = """
from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    strength: int = 1


class Mine:
    Options = Options

    def __init__(self, options=Options()):
        self.options = options

    def update(self, policy, batch, workspace):
        return policy
"""
METHOD = BROKEN.replace(
    '[project.entry-points."iterpo.environments"]\ntrade = "our_trade:Trade"\n', ""
)
CHOSEN = "method: {name: mine, options: {strength: much, speed: 3}}"


@pytest.mark.parametrize("command", ["config check plan.yaml", "run plan.yaml", "study study.yaml"])
def test_options_of_another_package_are_checked_before_anything_runs(
    command: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, {"our_trade/__init__.py": WORKING}, METHOD)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "our_trade", raising=False)
    (tmp_path / "plan.yaml").write_text(CHOSEN)
    (tmp_path / "study.yaml").write_text(
        f"plan: {{rounds: 1}}\nenvironments: {{ultimatum: {{}}}}\n"
        f"methods: {{iterpo: {{}}, other: {{{CHOSEN}}}}}\n"
    )
    done = call(*command.split())
    monkeypatch.delitem(sys.modules, "our_trade", raising=False)
    assert done.exit_code == 2
    assert not (tmp_path / "runs").exists()
    label = "methods.other." if "study" in command else ""
    for mistake in ("speed: unknown key", 'strength: given "much"'):
        assert f"{label}method.options.{mistake}" in done.stderr


BAD = {
    "function": ("def Mine(policy, batch, workspace): ...", "can't be made"),
    "no argument": (
        "from dataclasses import dataclass\n@dataclass\nclass Options:\n    n: int = 1\n"
        "class Mine:\n    Options = Options\n    def update(self, p, b, w): ...",
        "can't be made",
    ),
    "options": (
        "class Mine:\n    Options = dict\n    def update(self, p, b, w): ...",
        "accepted: a dataclass",
    ),
    "type": (
        "from dataclasses import dataclass\n"
        "class Odd: ...\n@dataclass\nclass Options:\n    n: Odd = Odd()\n"
        "class Mine:\n    Options = Options\n    def update(self, p, b, w): ...",
        "a type that plans can't hold",
    ),
    "default": (
        "from dataclasses import dataclass\n@dataclass\nclass Options:\n    n: int = 'many'\n"
        "class Mine:\n    Options = Options\n    def __init__(self, o): ...\n"
        "    def update(self, p, b, w): ...",
        'n: given "many" (text); accepted: a whole number',
    ),
    "no update": ("class Mine: ...", "needs a function update(policy, batch, workspace)"),
    "two arguments": (
        "class Mine:\n    def update(self, policy, batch): ...",
        "needs a function update(policy, batch, workspace): too many",
    ),
    "syntax": ("class Mine(", "SyntaxError"),
}


@pytest.mark.parametrize(("code", "why"), BAD.values(), ids=BAD)
def test_a_class_that_is_no_method_is_refused_and_hides_no_other(
    code: str, why: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, {"our_trade/__init__.py": code}, METHOD)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "our_trade", raising=False)
    (tmp_path / "plan.yaml").write_text("method: {name: mine}")
    done = call("config", "check", "plan.yaml")
    listed = call("methods")
    monkeypatch.delitem(sys.modules, "our_trade", raising=False)
    assert done.exit_code == 2
    assert "Traceback" not in done.output
    assert "method." in done.stderr
    assert why in " ".join(done.stderr.split())
    assert listed.exit_code == 0, listed.output
    assert "mt_kto" in listed.stdout


def test_a_name_of_ours_in_another_package_is_told(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, {"our_trade/__init__.py": WORKING}, METHOD.replace("mine =", "mt_sft ="))
    monkeypatch.syspath_prepend(str(tmp_path))
    done = call("methods")
    assert "the name mt_sft is iterpo's own; that of package our-trade is not used" in done.stderr
