"""The five lines of the README work as typed, with a smaller model and fewer conversations."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
SMALLER = {
    'make("ultimatum")': 'make("ultimatum", prompt_style="compact")',
    '"smollm2-135m"': '"nano"',
    "scenarios=100, per_scenario=4": "scenarios=6, per_scenario=2",
    'operator="grpo"': 'operator="grpo", steps=1, prompts_per_step=2, group_size=2',
}


def five_lines() -> str:
    """The code block of the README that starts with ``import iterpo``."""
    found = re.search(r"```python\n(import iterpo\n.*?)```", README.read_text(), re.DOTALL)
    assert found, "README lost its five lines"
    code = found.group(1)
    for old, new in SMALLER.items():
        assert old in code, f"README's five lines changed: {old!r} is gone"
        code = code.replace(old, new)
    return code


def test_the_five_lines_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl")
    monkeypatch.setenv("ITERPO_CACHE", str(tmp_path))
    names: dict[str, object] = {}
    exec(five_lines(), names)
    policy, better, q, batch = (names[n] for n in ("policy", "better", "q", "batch"))
    assert len(batch) == 12  # type: ignore[arg-type]
    assert better.parent == policy.id  # type: ignore[attr-defined]
    assert better.round == 1  # type: ignore[attr-defined]
    assert q.report.rows > 0  # type: ignore[attr-defined]
    again = importlib.import_module("iterpo").collect(
        better, names["env"], scenarios=2, per_scenario=1, seed=1
    )
    assert {c.policy for c in again} == {better.id}  # type: ignore[attr-defined]


def test_pain_76_import_needs_nothing_heavy() -> None:
    code = (
        "import sys, iterpo\n"
        "heavy = {'torch', 'transformers', 'trl', 'peft', 'numpy', 'iterpo.environments'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert callable(iterpo.collect) and callable(iterpo.fit_q) and callable(iterpo.improve)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
