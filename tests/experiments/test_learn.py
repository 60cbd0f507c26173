"""The update phase: it leaves a policy, and says how far Q moved since the last round."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")

from iterpo.artifacts import open_sealed, seal
from iterpo.domain import Conversation, Ending, Outcome, Role, Turn
from iterpo.experiments import learn
from iterpo.experiments.events import ignore
from iterpo.experiments.plan import Plan, load_plan
from iterpo.policy_evaluation.base import QConfig
from iterpo.store import write_conversations
from iterpo.testing.tiny_model import tiny_model


def talk(i: int, round_: int = 0) -> Conversation:
    """Two agent actions; the partner closes at a reward of i / 10."""
    turns = [Turn(Role.AGENT, "hello", scripted=True)]
    for t in range(2):
        turns += [Turn(Role.PARTNER, f"offer {i} {t}"), Turn(Role.AGENT, f"ok {i * t}")]
    turns.append(Turn(Role.PARTNER, "deal"))
    outcome = Outcome(Ending.AGREED, i / 10, closing_message=len(turns) - 1)
    name = f"{round_}/k{i}/0"
    return Conversation(name, f"k{i}", "toy", tuple(turns), outcome, "be brief", round=round_)


def log(run: Path, i: int) -> None:
    place = run / f"round-{i}" / "deploy" / "train"
    write_conversations(place / "conversations.jsonl", [talk(k, i) for k in range(8)])
    seal(place, "conversations", {})


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    small = ["improve.steps=1", "improve.prompts_per_step=2", "improve.group_size=2"]
    small += ["improve.sampling.max_new_tokens=4", "rounds=2", "stop_when_q_converged=0.1"]
    return load_plan("smoke", [f"policy.model={tiny_model(tmp_path / 'tiny')}", *small])


def test_q_is_compared_with_that_of_the_round_before(plan: Plan, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for i in (0, 1):
        log(run, i)
        learn.update(run, plan, f"round-{i}/update", ignore)
    first, second = (open_sealed(run / f"round-{i}/update")["facts"] for i in (0, 1))
    assert "q_change" not in first
    assert 0 < second["q_change"] < math.inf
    assert second["parent"] == first["policy"]
    left = {p.name for p in (run / "round-0/update").iterdir()}
    assert left == {"manifest.json", "metrics", "policy", "q", "q_health.json"}


def _q(value: float, **config: Any) -> Any:
    class Q:
        def __init__(self) -> None:
            self.config = QConfig(**config)

        def __call__(self, states: Sequence[Any], responses: Sequence[Any]) -> list[float]:
            return [value] * len(states)

    return Q()


def test_the_change_is_relative_to_the_returns_that_q_was_fitted_to() -> None:
    """The unit and gamma of Q, not those of the plan, which a method may have overruled."""
    batch: Any = SimpleNamespace(conversations=[talk(4), talk(8)])
    turns, messages = (
        learn._q_change(_q(1.0, discount_unit=unit), _q(0.5), batch)
        for unit in ("agent_turn", "message")
    )
    assert turns is not None
    assert messages is not None
    # Closed by the partner, one message after the last action: returns are 0.9 and 0.729 of r.
    expected = [0.9 * 0.4, 0.81 * 0.9 * 0.4, 0.9 * 0.8, 0.81 * 0.9 * 0.8]
    mean = sum(expected) / 4
    spread = math.sqrt(sum((x - mean) ** 2 for x in expected) / 4)
    assert messages == pytest.approx(0.5 / spread)
    assert turns != pytest.approx(messages)


def test_a_change_without_measure_is_null_in_json() -> None:
    flat = replace(talk(4), turns=talk(4).turns[:3])
    batch: Any = SimpleNamespace(conversations=[flat])
    assert learn._q_change(_q(1.0), _q(0.5), batch) is None, "all returns are equal"
    assert json.dumps(learn._q_change(_q(1.0), _q(1.0), batch), allow_nan=False) == "0.0"
