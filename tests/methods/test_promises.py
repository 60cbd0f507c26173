"""Every registered method keeps its promises, and for each promise there is one that breaks it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from iterpo.domain import Ending, PolicyRef, decisions
from iterpo.errors import ConfigError, ConformanceError, UnknownNameError
from iterpo.methods import REGISTRY, Method, RoundBatch, Workspace
from iterpo.policy_improvement.logged import Example, LoggedConfig, learner, on_policy
from iterpo.testing import check_method
from iterpo.testing.learning import LEARN as SETTINGS
from iterpo.testing.toy_game import GAMMA, play_toy, toy_optimum, toy_value
from iterpo.testing.updates import quick_batch

_STEPS = {"steps": 2, "batch_size": 8, "gradient_accumulation": 1}
_CRITIC = {"critic_batch_size": 32, "critic_epochs": 2, "critic_accumulation": 1}
QUICK: dict[str, dict[str, Any]] = {
    "archer": {"encoder": "policy", **_STEPS, **_CRITIC},
    "archer_lc": {"hidden": 8, **_STEPS, **_CRITIC},
    "iterpo": {},
    "mt_kto": _STEPS,
    "mt_ppo": _STEPS,
    "mt_sft": _STEPS,
    "st_grpo": {},
}
_LOGGED = {"learning_rate": 1e-2, "batch_size": 16, "gradient_accumulation": 1}
_LEARNED = {
    "critic_learning_rate": 1e-2, "critic_batch_size": 32, "critic_epochs": 20,
    "critic_accumulation": 1, "target_ema": 0.2, "expectile": 0.7, "beta": 3.0, "epochs": 4,
}  # fmt: skip
# Why 4 epochs: the fewest of 1, 2, 4, 8 at which one update of this actor closes three times what
# the check asks for (15%) under each of the seeds 10, 11, 12, given the exact advantages in place
# of the critic's; 1 closes -1% to 8%, so that no critic could have helped (docs/lab-notebook.md).
LEARN: dict[str, dict[str, Any]] = {
    "archer": {"encoder": "policy", **_LOGGED, **_LEARNED, "critic_learning_rate": 1e-3},
    "archer_lc": {"hidden": 32, "standardise": True, **_LOGGED, **_LEARNED},
    "iterpo": {},
    "mt_kto": _LOGGED,
    "mt_ppo": {**_LOGGED, "value_learning_rate": 3e-2, "value_passes": 4, "target_kl": 0.2},
    "mt_sft": _LOGGED,
    "st_grpo": {},
}
# In the game of two turns ST-GRPO is held to nothing. It could improve the last turn, and does; but
# its Q of the first one, whose target is 0, is noise that GRPO's division by the spread of a group
# makes as large as what is true of the last, and the first turn walks at random.
TURNS = {"st_grpo": 1}
Toy = tuple[PolicyRef, RoundBatch]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return quick_batch(tmp_path_factory.mktemp("toy"))


# ST-GRPO is IterPO at gamma 0, number for number (test_methods); the slow test has it.
@pytest.mark.parametrize("name", sorted(set(REGISTRY) - {"st_grpo"}))
def test_it_keeps_its_promises(name: str, toy: Toy) -> None:
    report = check_method(name, options=QUICK[name], toy=toy)
    assert set(report.unchecked) == {"judge, SIGKILL", "learning"}
    assert {"batch", "resume", "off-policy"} <= set(report.checked)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_it_outlives_sigkill(name: str, toy: Toy) -> None:
    check_method(name, options=QUICK[name], toy=toy, thorough=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_it_improves_the_toy_game(name: str, toy: Toy) -> None:
    turns = TURNS.get(name, 2)
    report = check_method(name, options=LEARN[name], toy=toy, seeds=(0, 1, 2), turns=turns)
    assert report.checked["learning"] == 3


@pytest.mark.parametrize("turns", [1, 2])
def test_the_value_of_the_toy_game_is_what_playing_it_gives(toy: Toy, turns: int) -> None:
    policy, _ = toy
    exact = toy_value(policy, turns)
    best = toy_optimum(turns)
    assert best == GAMMA ** (turns - 1)
    assert 0.3 < exact < 0.7 < best, "there is something to learn"
    n = 1500
    played = play_toy(policy, n, seed=5, turns=turns)
    assert {len(decisions(c, GAMMA)) for c in played} == {turns}
    agreed = sum(c.outcome.ending is Ending.AGREED for c in played) / n
    chance = exact / best
    assert abs(agreed - chance) < 4 * (chance * (1 - chance) / n) ** 0.5


class Imitates:
    """Keeps all promises: imitates what was agreed."""

    def own(self, batch: RoundBatch, workspace: Workspace) -> Any:
        return on_policy(workspace.own(batch))

    def weight(self, c: Any) -> float:
        return float(c.outcome.reward or 0.0)

    def update(self, policy: PolicyRef, batch: RoundBatch, workspace: Workspace) -> PolicyRef:
        found = [
            Example(d.state, d.response, True, self.weight(c))
            for c in self.own(batch, workspace)
            for d in decisions(c, 0.9)
        ]
        config = LoggedConfig(1e-2, steps=2, batch_size=8, gradient_accumulation=1)
        return workspace.learn(policy, batch, learner("awr", found, config))


class BlindToMarks(Imitates):
    def own(self, batch: RoundBatch, workspace: Workspace) -> Any:
        return [c for c in workspace.own(batch) if c.outcome.ending.scored]


class Random(Imitates):
    def weight(self, c: Any) -> float:
        return random.random()


class Peeks(Imitates):
    def own(self, batch: RoundBatch, workspace: Workspace) -> Any:
        return on_policy(batch.conversations)


class Stays(Imitates):
    def update(self, policy: PolicyRef, batch: RoundBatch, workspace: Workspace) -> PolicyRef:
        self.own(batch, workspace)
        return policy


class Skips(Imitates):
    def update(self, policy: PolicyRef, batch: RoundBatch, workspace: Workspace) -> PolicyRef:
        new = super().update(policy, batch, workspace)
        return replace(new, round=new.round + 1)


class Crashes(Imitates):
    def weight(self, c: Any) -> float:
        return 1 / 0


class ForgetsWhatItKnew(Imitates):
    """Learns something in a stage, keeps it nowhere, and so goes on otherwise after a stop."""

    def update(self, policy: PolicyRef, batch: RoundBatch, workspace: Workspace) -> PolicyRef:
        self.known: set[str] = set()

        def build(folder: Path, before: Path | None) -> dict[str, int]:
            self.known = {c.id for c in batch.conversations if c.outcome.reward}
            return {}

        workspace.stage("facts", build)
        return super().update(policy, batch, workspace)

    def weight(self, c: Any) -> float:
        return 1.0 if c.id in self.known else 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (BlindToMarks, "off-policy: explored turns are refused"),
        (Random, "determinism: the same batch"),
        (Stays, "batch: the policy moves"),
        (Skips, "batch: the new policy is one round on"),
        (Crashes, "robustness: an update does not raise"),
        (ForgetsWhatItKnew, "resume: stopped on the way"),
    ],
)
def test_a_broken_promise_is_told(broken: Callable[[], Method], rule: str, toy: Toy) -> None:
    with pytest.raises(ConformanceError, match=rule):
        check_method(broken, toy=toy)


@pytest.mark.slow
def test_thorough_finds_who_peeks_and_seeds_find_who_learns_nothing(toy: Toy) -> None:
    check_method(Imitates, toy=toy, thorough=True)
    with pytest.raises(ConformanceError, match="judge: endings of conversations"):
        check_method(Peeks, toy=toy, thorough=True)
    with pytest.raises(ConformanceError, match=r"learning: 5% of the room"):
        check_method("mt_sft", options={**_LOGGED, "learning_rate": 1e-7}, toy=toy, seeds=(0,))


@pytest.mark.slow
def test_a_myopic_method_that_learns_nothing_true_fails_in_the_game_of_one_turn(toy: Toy) -> None:
    shuffled = replace(SETTINGS, q=replace(SETTINGS.q, shuffle_returns=True))
    with pytest.raises(ConformanceError, match=r"learning: 5% of the room"):
        check_method("st_grpo", settings=shuffled, toy=toy, seeds=(0, 1, 2), turns=1)


def test_mistakes_of_the_caller_are_no_findings() -> None:
    with pytest.raises(UnknownNameError):
        check_method("nothing")
    with pytest.raises(ConfigError):
        check_method("mt_sft", options={"learning_rate": -1})
    with pytest.raises(ConfigError, match="turns is 3"):
        check_method("mt_sft", turns=3)
    with pytest.raises(ConformanceError, match=r"(?s)partial.*raise"):
        check_method(partial(Crashes))
