"""The deploy phase: where nobody could speak, and who is explored."""

from __future__ import annotations

from pathlib import Path

import pytest

from iterpo import environments
from iterpo.agents.base import Agent, Seat
from iterpo.agents.persona import draw_persona
from iterpo.artifacts import open_sealed
from iterpo.domain import Role, Split
from iterpo.errors import BatchError
from iterpo.experiments import rollout
from iterpo.experiments.events import ignore
from iterpo.experiments.plan import load_plan
from iterpo.experiments.rollout import prompt_style
from iterpo.store import read_conversations

PLAN = load_plan("smoke", ["collect.scenarios=2", "collect.per_scenario=2", "heldout.scenarios=1"])


def _silent(*_: object, **__: object) -> object:
    def factory(seat: Seat) -> Agent:
        raise TimeoutError("the server is silent")

    return factory


def test_a_batch_of_failures_names_their_cause_and_is_played_again_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("iterpo.agents.local.LocalPolicy", _silent)
        with pytest.raises(BatchError, match=r"4 infrastructure_failure.*the server is silent"):
            rollout.deploy(tmp_path, PLAN, "round-0/deploy", ignore)
    assert not (tmp_path / "round-0/deploy/manifest.json").exists()
    rollout.deploy(tmp_path, PLAN, "round-0/deploy", ignore)
    assert (tmp_path / "round-0/deploy/manifest.json").exists()


def test_training_kernels_are_explored_and_held_out_ones_never(tmp_path: Path) -> None:
    small = ["collect.scenarios=4", "collect.per_scenario=2", "heldout.scenarios=4"]
    plain = load_plan("smoke", small)
    explore = ["collect.explore={share: 0.5, scope: action, within: 2}", "q.off_policy=drop"]
    explored = load_plan("smoke", [*small, *explore])
    key = "round-0/deploy"
    for name, plan in (("plain", plain), ("explored", explored)):
        rollout.deploy(tmp_path / name, plan, key, ignore)
    facts = open_sealed(tmp_path / "explored" / key)["facts"]
    n = facts["train"]["explored"]
    assert 0 < n < 8
    assert facts["train"]["n_scored"] + n + facts["train"]["left_out"] == 8
    assert facts["heldout"]["explored"] == 0
    logs = {
        (name, split): read_conversations(tmp_path / name / key / split)
        for name in ("plain", "explored")
        for split in ("train", "heldout")
    }
    assert logs["plain", "heldout"] == logs["explored", "heldout"]
    assert all(c.exploration is None for c in logs["plain", "train"])
    assert sum(c.explored for c in logs["explored", "train"]) == n
    assert explored.collect.explore is not None
    for c in logs["explored", "train"]:
        assert c.exploration == draw_persona(explored.collect.explore, c.seed)
    told = [c for c in logs["explored", "train"] if any(t.off_policy for t in c.turns)]
    assert told
    game = environments.make("ultimatum", prompt_style="compact")
    for c in told:
        (kernel,) = (k for k in game.scenarios(Split.TRAIN, 4) if k.kernel_id == c.kernel_id)
        assert c.system == game.view(kernel, Role.AGENT, c.turns[:1]).system


def test_personas_are_worded_like_the_games_prompts() -> None:
    for style in ("full", "compact"):
        assert prompt_style(environments.make("ultimatum", prompt_style=style)) == style

    class Other:
        options = None

    assert prompt_style(Other()) == "full"  # type: ignore[arg-type]
