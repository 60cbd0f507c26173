"""The arms of the ablation table: each guard of the recipe off in turn, each further option on.

    python benchmarks/learning/improvement.py --ablations --seeds 5 --jobs 2

An arm is the recipe of improvement.yaml with these settings on top.
"""

from __future__ import annotations

PAPER = [
    *("q.pooling=final", "q.heads=1", "q.standardise=false", "q.clamp=false"),
    *("q.learning_rate=1e-4", "q.epochs=3", "q.batch_size=8", "q.judge_fraction=0"),
    *("collect.sampling.temperature=0.7", "collect.sampling.top_p=0.9"),
    *("improve.sampling.temperature=0.7", "improve.sampling.top_p=0.9"),
    *("improve.learning_rate=1e-5", "improve.kl_target=null", "improve.std_floor=0"),
    "roll_back.enabled=false",
]
"""The paper's plain recipe; its candidates a step and its number of steps are the recipe's."""

_COOL = [f"{where}.sampling.temperature=0.7" for where in ("collect", "improve")]

GUARDS_OFF: dict[str, list[str]] = {
    "no-kl-target": ["improve.kl_target=null"],
    "fixed-kl-weight": ["improve.kl_target=null", "improve.beta=0.5"],
    "triple-step": ["improve.learning_rate=1.2e-2"],
    "triple-step-no-kl-target": ["improve.learning_rate=1.2e-2", "improve.kl_target=null"],
    "temperature-0.7": _COOL,
    "final-token": ["q.pooling=final"],
    "one-head": ["q.heads=1"],
    "not-standardised": ["q.standardise=false"],
    "no-clamp": ["q.clamp=false"],
    "no-std-floor": ["improve.std_floor=0"],
    "no-judge": ["q.judge_fraction=0"],
    "no-roll-back": ["roll_back.enabled=false"],
    "two-fifths-of-the-data": ["collect.scenarios=100"],
    "paper-recipe-our-steps": [*PAPER, "improve.learning_rate=4e-3"],
    "paper-recipe-ten-times-the-steps": [*PAPER, "improve.steps=640"],
}
"""What breaks without a part."""

OPTIONS_ON: dict[str, list[str]] = {
    "figures": ["q.numbers=8"],
    "pessimism-1": ["q.pessimism=1"],
    "pooled-rounds": ["q.pool_rounds=1"],
    "entropy-bonus": ["improve.entropy_bonus=0.01"],
    "tempered-candidates": ["improve.candidate_temperatures=[1.0, 1.0, 1.4]"],
    "double-group": ["improve.group_size=16", "improve.prompts_per_step=4"],
    "optimism": ["collect.optimism={share: 0.25}", "q.off_policy=drop"],
    "tuned-critic": ["q.tune={learning_rate: 1e-3}"],
}
"""What a part that is off by default would add."""

ABLATIONS = GUARDS_OFF | OPTIONS_ON
GAMES = ("ultimatum", "deal_or_no_deal")
ROUNDS = "rounds=3"
"""Pooling and roll-back act from the second update on."""
