"""The verdict: a table of what evidence comes to."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest

from iterpo.errors import ConfigError
from iterpo.measure.intervals import Interval
from iterpo.measure.off_policy import Gain
from iterpo.methods.verdict import Evidence, VerdictConfig, decide


def between(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, 0.1, low, high, 50, 10)


def gain(low: float, high: float, ess: float = 60.0, n: int = 100) -> Gain:
    return Gain(between(low, high), ess, n)


FIT = between(0.1, 0.5)
GOOD, BAD, OPEN = between(0.01, 0.2), between(-0.2, -0.01), between(-0.1, 0.2)

ROWS: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "judge above 0": (
        {"judge_gain": GOOD, "judge_correlation": FIT}, {}, "improved", "judge +0.105",
    ),
    "judge below 0": (
        {"judge_gain": BAD, "judge_correlation": FIT}, {}, "refused", "worse: judge",
    ),
    "judge open": (
        {"judge_gain": OPEN, "judge_correlation": FIT}, {}, "unchanged", "include 0",
    ),
    "a judge that may know nothing is not heard": (
        {"judge_gain": GOOD, "judge_correlation": between(-0.1, 0.3)}, {}, "unchanged",
        "not heard: its correlation with unseen returns is +0.100 [-0.100, +0.300]",
    ),
    "a judge of unknown skill is not heard": (
        {"judge_gain": GOOD, "judge_correlation": None}, {}, "unchanged", "returns is unknown",
    ),
    "the Q that was trained on is never heard": (
        {"q_gain": GOOD}, {}, "unchanged", "judge_fraction",
    ),
    "off-policy above 0": (
        {"off_policy": gain(0.01, 0.2), "independent": True}, {}, "improved", "off-policy",
    ),
    "first order above 0": (
        {"first_order": gain(0.01, 0.2), "independent": True}, {}, "improved", "first order",
    ),
    "what Q has seen can't praise": (
        {"off_policy": gain(0.01, 0.2)}, {}, "unchanged", "judge_fraction",
    ),
    "what Q has seen can warn": ({"off_policy": gain(-0.2, -0.01)}, {}, "refused", "off-policy"),
    "too few effective conversations": (
        {"off_policy": gain(0.01, 0.2, ess=19.0), "independent": True}, {}, "unchanged",
        "effective sample of the off-policy estimate is too small: 19.0 of 100",
    ),
    "too small a share of them": (
        {"off_policy": gain(0.01, 0.2, ess=30, n=400), "independent": True}, {}, "unchanged", "",
    ),
    "one source against another": (
        {"judge_gain": GOOD, "judge_correlation": FIT, "first_order": gain(-0.2, -0.01),
         "independent": True}, {}, "refused", "first order",
    ),
    "touching 0 is not above it": (
        {"judge_gain": between(0.0, 0.2), "judge_correlation": FIT}, {}, "unchanged", "include 0",
    ),
    "moved too far": (
        {"judge_gain": GOOD, "judge_correlation": FIT, "kl": 2.5}, {"max_kl": 2.0}, "refused",
        "2.5 nats",
    ),
    "within the limit": (
        {"judge_gain": GOOD, "judge_correlation": FIT, "kl": 2.0}, {"max_kl": 2.0}, "improved", "",
    ),
    "a distance that is no number trips as well": (
        {"kl": math.nan}, {"max_kl": 2.0}, "refused", "nan nats",
    ),
    "says what was never tried": (
        {"judge_gain": GOOD, "judge_correlation": FIT, "unseen_new": 0.6}, {"max_unseen": 0.5},
        "refused", "60% of its responses",
    ),
    "not moved": (
        {"judge_gain": between(0.0, 0.0), "moved": False}, {}, "unchanged", "exactly like",
    ),
    "one kernel": (
        {"judge_gain": between(-math.inf, math.inf), "judge_correlation": FIT}, {}, "unchanged", "",
    ),
    "why there is none is told": (
        {"notes": ("no log-probabilities",)}, {}, "unchanged", "no log-probabilities",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_what_evidence_comes_to(name: str) -> None:
    evidence, config, expected, told = ROWS[name]
    found = decide(Evidence(**{"kl": 0.1, "unseen_new": 0.05, **evidence}), VerdictConfig(**config))
    assert found.verdict == expected, found.why
    assert told in found.why
    if name != "a distance that is no number trips as well":
        json.dumps(found.to_dict(), allow_nan=False)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        VerdictConfig(states=-1, candidates=0, confidence=1.0, max_kl=0.0, min_ess_share=2.0)
    assert str(caught.value).count("accepted:") == 5
    with pytest.raises(ConfigError, match="states: given 0 with on_refused discard"):
        VerdictConfig(states=0, on_refused="discard")


def test_it_imports_without_torch_and_numpy() -> None:
    code = (
        "import sys, iterpo.experiments.plan, iterpo.methods.verdict; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'numpy')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
