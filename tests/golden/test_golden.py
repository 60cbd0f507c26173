"""Recorded conversations with their outcome, decisions and returns, as readable JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from iterpo import environments
from iterpo.domain import Conversation, Role, Scenario, Split, Turn, decisions, discounted_return
from iterpo.environments.deal_or_no_deal import DealOrNoDeal
from iterpo.environments.sources import Division

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("conversations.json").read_text())


def _scenario(env: Any, facts: dict[str, Any]) -> Scenario:
    if isinstance(env, DealOrNoDeal):
        division = Division(*(tuple(facts[k]) for k in ("counts", "agent", "partner")))
        return env.scenario(division, Split.TRAIN)
    rest = {k: v for k, v in facts.items() if k != "kernel_id"}
    return Scenario(facts["kernel_id"], env.name, Split.TRAIN, rest)


@pytest.mark.parametrize("case", CASES, ids=[c["name"] for c in CASES])
def test_a_recorded_conversation_reads_as_it_did(case: dict[str, Any]) -> None:
    env, expected = environments.make(case["environment"], **case["options"]), case["expected"]
    scenario = _scenario(env, case["scenario"])
    assert scenario.kernel_id == case["scenario"]["kernel_id"]
    turns = [env.opening(scenario)]
    for i, text in enumerate(case["partner_and_agent"], start=1):
        assert env.read(scenario, turns) is None, f"it ended before message {i}"
        turns.append(Turn(Role.PARTNER if i % 2 else Role.AGENT, text))
    outcome = env.read(scenario, turns)
    assert outcome is not None
    assert outcome.ending.value == expected["ending"]
    assert outcome.reward == pytest.approx(expected["reward"])
    assert outcome.closing_message == expected["closing_message"]
    if expected["closed_by"]:
        assert outcome.closed_by == expected["closed_by"]
    c = Conversation("c", scenario.kernel_id, env.name, tuple(turns), outcome, "s")
    for unit in ("agent_turn", "message"):
        assert discounted_return(c, 0.9, unit) == pytest.approx(expected[f"J_{unit}"])
        rows = decisions(c, 0.9, unit)
        assert [r.ret for r in rows] == pytest.approx(expected[f"returns_{unit}"])
        assert [r.state.t for r in rows] == list(range(1, expected["tau"] + 1))
