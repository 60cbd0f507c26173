"""Reporting: a step's metrics are what was measured; the trainer's fill what was not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from iterpo.policy_improvement.job import Tally
from iterpo.policy_improvement.reporting import Reporter


@pytest.mark.parametrize(("measured", "told"), [({"kl": 0.5}, 0.5), ({}, 9.0)])
def test_a_measured_kl_is_not_replaced(measured: dict[str, float], told: float) -> None:
    tally = Tally()
    tally.latest = dict(measured)
    rows: list[dict[str, float]] = []
    job = SimpleNamespace(record=lambda _, row: rows.append(row), progress=None, steps=4)
    observer = SimpleNamespace(watch=SimpleNamespace(check=lambda *_: ()))
    reporter = Reporter(tally, cast(Any, job), cast(Any, observer))
    reporter.on_log(None, SimpleNamespace(global_step=1), None, {"loss": 1.0, "kl": 9.0})
    assert rows[0]["kl"] == told
