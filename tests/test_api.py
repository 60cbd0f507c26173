"""The five lines of the README work as typed, with a smaller model and fewer conversations."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from iterpo import api
from iterpo.agents.base import Reply, Seat
from iterpo.domain import Ending, Role, Sampling, View
from iterpo.environments import make
from iterpo.errors import IterpoError
from iterpo.measure import measure
from iterpo.models import hub
from iterpo.testing.tiny_model import tiny_model
from methods.conftest import talk

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


@pytest.fixture
def game() -> Any:
    return make("ultimatum", prompt_style="compact")


def test_collect_takes_names_policies_and_agents(game: Any) -> None:
    few: dict[str, Any] = {"scenarios": 2, "per_scenario": 1}
    few["sampling"] = Sampling(max_new_tokens=4)
    nano = api.load_policy("nano")
    by_name = api.collect("nano", game, **few)
    assert by_name == api.collect(nano, game, **few)
    assert all(c.j_star for c in by_name), "the scripted partner is the default"
    itself = api.collect("nano", game, partner=nano, **few)
    assert {t.role for c in itself for t in c.turns if t.sampled} == set(Role)
    assert not any(c.j_star for c in itself)
    optimal = measure(api.collect("oracle", game, scenarios=12, per_scenario=1))
    assert optimal.regret_agent_turn is not None
    assert optimal.regret_agent_turn.mean == pytest.approx(0)

    class Leaving:
        def __call__(self, seat: Seat) -> Leaving:
            return self

        async def reply(self, view: View) -> Reply:
            return Reply("\\boxed{NO DEAL}")

        def close(self) -> None:
            pass

    for played in (
        api.collect(Leaving(), game, scenarios=2),
        api.collect("first-counter", game, partner=Leaving(), scenarios=2),
    ):
        assert [c.outcome.ending for c in played] == [Ending.REFUSED] * 8


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"policy": "nanoo"}, "there is no speaker 'nanoo'.*oracle"),
        ({"policy": 3}, "policy is a int; accepted: a policy"),
        ({"partner": 3.5}, "partner is a float; accepted"),
        ({"partner": "oracle"}, "partner can't be 'oracle'"),
        ({"scenarios": 0}, "scenarios is 0; accepted: 1 or more"),
        ({"per_scenario": -1}, "per_scenario is -1; accepted: 1 or more"),
    ],
    ids=str,
)
def test_collect_says_what_it_can_not_take(game: Any, arguments: Any, part: str) -> None:
    with pytest.raises(IterpoError, match=part):
        api.collect(**{"policy": "first-counter", "environment": game} | arguments)


def test_fit_q_learns_from_all_of_a_batch_unless_a_judge_is_asked_for(tmp_path: Path) -> None:
    """And its settings tell which: `iterpo improve --q` takes what they say as never seen."""
    policy = hub.base_policy(str(tiny_model(tmp_path / "tiny")))
    batch = [talk(i) for i in range(32)]
    alone = api.fit_q(policy, batch, epochs=1, hidden=8)
    assert (alone.report.rows, alone.config.judge_fraction) == (64, 0.0)
    beside = api.fit_q(policy, batch, epochs=1, hidden=8, judge_fraction=0.25)
    assert (beside.report.rows, beside.config.judge_fraction) == (48, 0.25)
