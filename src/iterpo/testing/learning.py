"""Learning: a method must make the policy of the toy game better, by its exact value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from iterpo.domain import Conversation, PolicyRef, Sampling
from iterpo.methods import RoundBatch
from iterpo.methods.workspace import Settings
from iterpo.models.lora import LoraSpec
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_improvement.base import ImproveConfig
from iterpo.testing.interruptions import Trial
from iterpo.testing.report import Findings
from iterpo.testing.toy_game import play_toy, toy_optimum, toy_value

__all__ = ["LEARN", "LEAST", "check_learning"]

LEARN = Settings(
    q=QConfig(epochs=30, hidden=32, heads=4, learning_rate=1e-2, batch_size=32, judge_fraction=0.0),
    improve=ImproveConfig(
        lora=LoraSpec(r=8, alpha=16),
        sampling=Sampling(max_new_tokens=1),
        prompts_per_step=16,
        group_size=8,
        steps=24,
        learning_rate=1e-2,
        clipped_ratio_alarm=1.0,
    ),
    device="cpu",
)
"""Settings that suit the toy game and its tiny model."""

LEAST = 0.05
"""Share of the room to the optimum that must be closed under every seed."""

_ROWS = 384  # turns of the agent in a round's log, so that Q has as many rows in either game
_ROUNDS = 3


def check_learning(
    trial: Trial,
    policy: PolicyRef,
    root: Path,
    seeds: Sequence[int],
    settings: Settings | None,
    findings: Findings,
    turns: int = 2,
) -> None:
    """Three rounds from the same initial policy under every seed, in the game of so many turns."""
    if not seeds:
        findings.unchecked("learning", "give seeds=(0, 1, 2) to have it learn the toy game")
        return
    start, best = toy_value(policy, turns), toy_optimum(turns)
    closed = []
    for seed in seeds:
        end = _learned(replace(trial, settings=settings or LEARN), policy, root, seed, turns)
        closed.append((end - start) / (best - start))
        findings.expect(
            f"learning: {LEAST:.0%} of the room to the best policy of the toy game is closed",
            closed[-1] >= LEAST,
            f"J {start:.3f} became {end:.3f} under seed {seed}, the best is {best:.3f}; if it "
            "hardly moves, give options with a larger step size or more steps",
        )
    findings.remark(
        f"learning: J {start:.3f} of the initial policy, {best:.3f} of the best; in {_ROUNDS} "
        f"rounds {fmean(closed):.0%} of the room between them is closed on average "
        f"({', '.join(f'{c:.0%}' for c in closed)})"
    )


def _learned(trial: Trial, policy: PolicyRef, root: Path, seed: int, turns: int) -> float:
    """Value after all rounds; the method sees logs of its own policies only."""
    initial = policy
    earlier: list[tuple[Conversation, ...]] = []
    before: Path | None = None
    s = trial.settings
    own = replace(s, q=replace(s.q, seed=seed), improve=replace(s.improve, seed=seed))
    trial = replace(trial, settings=own)
    for i in range(_ROUNDS):
        played = play_toy(policy, _ROWS // turns, round=i, seed=seed, turns=turns)
        batch = RoundBatch(i, played, initial, tuple(earlier))
        folder = root / f"learn-{seed}-{i}"
        policy = trial.update(policy, batch, folder, before=before)
        earlier.append(played)
        before = folder
    return toy_value(policy, turns)
