"""The deploy phase where nobody could speak."""

from __future__ import annotations

from pathlib import Path

import pytest

from iterpo.agents.base import Agent, Seat
from iterpo.errors import BatchError
from iterpo.experiments import rollout
from iterpo.experiments.events import ignore
from iterpo.experiments.plan import load_plan

PLAN = load_plan("smoke", ["collect.scenarios=2", "collect.per_scenario=2", "heldout.scenarios=1"])


def _silent(*_: object) -> object:
    def factory(seat: Seat) -> Agent:
        raise TimeoutError("the server is silent")

    return factory


def test_a_batch_of_failures_names_their_cause_and_is_played_again_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(rollout, "LocalPolicy", _silent)
        with pytest.raises(BatchError, match=r"4 infrastructure_failure.*the server is silent"):
            rollout.deploy(tmp_path, PLAN, "round-0/deploy", ignore)
    assert not (tmp_path / "round-0/deploy/manifest.json").exists()
    rollout.deploy(tmp_path, PLAN, "round-0/deploy", ignore)
    assert (tmp_path / "round-0/deploy/manifest.json").exists()
