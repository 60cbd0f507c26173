"""``check_method``: does somebody's method keep what every method promises?"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from iterpo.domain import PolicyRef
from iterpo.errors import ConformanceError
from iterpo.methods import Method, RoundBatch
from iterpo.methods.workspace import Settings
from iterpo.testing.interruptions import Trial
from iterpo.testing.learning import check_learning
from iterpo.testing.report import Findings, Report
from iterpo.testing.updates import (
    QUICK,
    check_explored,
    check_kills,
    check_options,
    check_set_aside,
    check_stops,
    check_update,
    quick_batch,
)

__all__ = ["check_method"]


def check_method(
    method: str | Callable[[], Method],
    *,
    options: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = (),
    settings: Settings | None = None,
    thorough: bool = False,
    toy: tuple[PolicyRef, RoundBatch] | None = None,
) -> Report:
    """Try a method on a toy game with a tiny random model, on the CPU.

    A second or two; with ``seeds`` some seconds a seed, and ``thorough`` ten more.

    Args:
        method: Registered name, or what makes the method (a class, a ``functools.partial``).
        options: Its options, where it is given by name. Step sizes that are right for a large model
            hardly move a tiny one.
        seeds: Seeds over which it must improve the toy game; none: that is not tried.
        settings: Of the workspace it learns with; by default ``learning.LEARN``.
        thorough: Whether updates are also stopped in every stage, killed there by SIGKILL in
            processes of their own, and tried with other endings of what is kept for the judge.
        toy: What ``quick_batch`` gave, where several methods are checked.

    Returns:
        What was checked, what could not be, and how much was learned.

    Raises:
        ConformanceError: if something is wrong; lists all of it, each with a counter-example.
        UnknownNameError: if no method is called so.
        ConfigError: if the options are wrong.
    """
    named = method if isinstance(method, str) else getattr(method, "__name__", repr(method))
    findings = Findings()
    trial = Trial(method, options or {}, QUICK)
    made = trial.made()
    check_options(made, findings)
    with tempfile.TemporaryDirectory(prefix="iterpo-check-") as place:
        root = Path(place)
        policy, batch = toy or quick_batch(root / "model")
        with findings.calling("an update", "on a batch of the toy game"):
            first = check_update(trial, policy, batch, root, findings)
            check_stops(trial, policy, batch, first, findings, every=thorough)
            check_explored(trial, policy, batch, first, findings)
            if thorough:
                check_set_aside(trial, policy, batch, first, findings)
                check_kills(trial, policy, batch, first, findings)
            else:
                findings.unchecked("judge, SIGKILL", "give thorough=True")
        if seeds:
            with findings.calling("learning", "on the toy game"):
                check_learning(trial, policy, root, seeds, settings, findings)
        else:
            findings.unchecked("learning", "give seeds=(0, 1, 2) to have it learn the toy game")
    report = findings.report(named, "a method")
    if not report.ok:
        raise ConformanceError(str(report))
    return report
