"""QConfig: the paper's numbers, and all mistakes at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from iterpo.errors import ConfigError
from iterpo.policy_evaluation.base import QConfig


def test_table_3_of_the_paper():
    config = QConfig()
    assert (config.gamma, config.learning_rate, config.epochs, config.batch_size) == (
        0.9,
        1e-4,
        3,
        8,
    )
    assert (config.hidden, config.dropout, config.heads, config.pooling) == (256, 0.1, 1, "final")


def test_all_mistakes_are_named_at_once():
    with pytest.raises(ConfigError) as caught:
        QConfig(gamma=1.5, epochs=0, backbone="int3", holdout_fraction=0.95)
    message = str(caught.value)
    assert "gamma is 1.5" in message
    assert "epochs is 0" in message
    assert "backbone is 'int3'; accepted: shared, nf4" in message
    assert "holdout_fraction" in message


def test_gamma_0_counts_agent_turns() -> None:
    """Per message it would give the last action nothing whenever the partner closes the deal."""
    assert QConfig(gamma=0.0).gamma == 0.0
    with pytest.raises(ConfigError, match="use agent_turn"):
        QConfig(gamma=0.0, discount_unit="message")


@pytest.mark.parametrize("module", ["base", "health", "split", "chains"])
def test_it_imports_without_torch(module):
    code = (
        f"import sys, iterpo.policy_evaluation.{module}; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        pytest.param({"pessimism": -0.5, "heads": 4}, "pessimism is -0.5; it must be 0", id="sign"),
        pytest.param({"pessimism": 1.0}, "one head has no spread", id="one head"),
        pytest.param({"judge_fraction": 0.95}, "judge_fraction is 0.95", id="all to the judge"),
    ],
)
def test_guards_that_mean_nothing_are_refused(changes: dict[str, float], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        QConfig(**changes)  # type: ignore[arg-type]
