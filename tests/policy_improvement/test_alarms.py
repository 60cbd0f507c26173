from __future__ import annotations

import pytest

from iterpo.errors import TrainingError
from iterpo.policy_improvement.alarms import Alarms

FINE = {"clipped_ratio": 0.1, "frac_tied_groups": 0.5, "frac_unscored": 0.0}


def test_a_normal_step_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    assert Alarms(0.5, 3).check(1, FINE) == []
    assert caplog.text == ""


def test_a_lasting_alarm_is_counted_every_time_and_said_ever_less(
    caplog: pytest.LogCaptureFixture,
) -> None:
    alarms = Alarms(0.5, 3)
    raised = [len(alarms.check(step, {**FINE, "clipped_ratio": 0.9})) for step in range(1, 101)]
    assert sum(raised) == 100
    assert [r.message.split(":")[0] for r in caplog.records] == [
        f"step {n}" for n in (1, 2, 4, 8, 16, 32, 64)
    ]


def test_flat_steps_count_only_in_a_row() -> None:
    alarms = Alarms(0.5, 2)
    flat = {**FINE, "frac_tied_groups": 1.0}
    assert [len(alarms.check(0, m)) for m in (flat, FINE, flat, flat)] == [0, 0, 0, 1]


def test_a_reward_without_any_score_ends_training_after_three_steps() -> None:
    alarms = Alarms(0.5, 9)
    nothing = {**FINE, "frac_unscored": 1.0}
    alarms.check(1, nothing)
    alarms.check(2, nothing)
    with pytest.raises(TrainingError, match="every response of 3 steps"):
        alarms.check(3, nothing)
