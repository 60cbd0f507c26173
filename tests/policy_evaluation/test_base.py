"""QConfig: the recipe that held, and all mistakes at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from iterpo.errors import ConfigError
from iterpo.policy_evaluation.base import QConfig


def test_the_defaults_are_the_recipe_that_held():
    """Table 3 of the paper is a preset, and tested with plans."""
    config = QConfig()
    assert (config.gamma, config.learning_rate, config.epochs, config.batch_size) == (
        0.9,
        3e-4,
        8,
        32,
    )
    assert (config.hidden, config.dropout, config.heads) == (256, 0.1, 8)
    assert config.pooling == "final_and_mean"
    assert config.standardise
    assert config.clamp
    assert config.judge_fraction == 0.25
    assert config.tune is None
    assert (config.pessimism, config.pool_rounds, config.shuffle_returns) == (0.0, 0, False)


def test_all_mistakes_are_named_at_once():
    with pytest.raises(ConfigError) as caught:
        QConfig(gamma=1.5, epochs=0, backbone="int3", holdout_fraction=0.95)
    message = str(caught.value)
    assert "gamma: given 1.5; accepted: 0 to 1" in message
    assert "epochs: given 0" in message
    assert "backbone: given 'int3'; accepted: shared, nf4" in message
    assert "holdout_fraction" in message


def test_gamma_0_counts_agent_turns() -> None:
    """Per message it would give the last action nothing whenever the partner closes the deal."""
    assert QConfig(gamma=0.0).gamma == 0.0
    with pytest.raises(ConfigError, match="use agent_turn"):
        QConfig(gamma=0.0, discount_unit="message")


@pytest.mark.parametrize("module", ["base", "health", "split", "transitions", "replay"])
def test_it_imports_without_torch(module):
    code = (
        f"import sys, iterpo.policy_evaluation.{module}; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        pytest.param(
            {"pessimism": -0.5, "heads": 4}, "pessimism: given -0.5; accepted: 0", id="sign"
        ),
        pytest.param({"pessimism": 1.0, "heads": 1}, "one head has no spread", id="one head"),
        pytest.param({"weight_decay": float("inf")}, "weight_decay: given inf", id="no number"),
        pytest.param({"judge_fraction": 0.95}, "judge_fraction: given 0.95", id="all to the judge"),
    ],
)
def test_guards_that_mean_nothing_are_refused(changes: dict[str, float], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        QConfig(**changes)  # type: ignore[arg-type]
