"""``check_method``: does somebody's method keep what every method promises?"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from iterpo.domain import PolicyRef
from iterpo.errors import ConfigError, ConformanceError
from iterpo.methods import Method, RoundBatch
from iterpo.methods.workspace import Settings
from iterpo.testing.interruptions import Trial
from iterpo.testing.learning import check_learning
from iterpo.testing.report import Findings, Report
from iterpo.testing.toy_game import TURNS
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
    turns: int = 2,
    toy: tuple[PolicyRef, RoundBatch] | None = None,
) -> Report:
    """Try a method on a toy game with a tiny random model, on the CPU.

    Some seconds, most of them to load torch; with ``seeds`` some more each, ``thorough`` ten.

    Args:
        method: Registered name, or what makes the method (a class, a ``functools.partial``).
        options: Its options, where it is given by name. Step sizes that are right for a large model
            hardly move a tiny one.
        seeds: Seeds over which it must improve the toy game; none: that is not tried.
        settings: Of the workspace it learns with; by default ``learning.LEARN``.
        thorough: Whether updates are also stopped in every stage, killed there by SIGKILL in
            processes of their own, and tried with other endings of what is kept for the judge.
        turns: Of the agent in the game that it must improve. Give 1 for a method that credits a
            turn with nothing that comes later (gamma 0): what it learns of the first of two turns
            is noise, and the value of the game follows that as much as what it learns of the last.
        toy: What ``quick_batch`` gave, where several methods are checked.

    Returns:
        What was checked, what could not be, and how much was learned.

    Raises:
        ConformanceError: if something is wrong; lists all of it, each with a counter-example.
        UnknownNameError: if no method is called so.
        ConfigError: if the options are wrong, or there is no game of so many turns.
    """
    if turns not in TURNS:
        raise ConfigError(f"turns is {turns!r}; there is a toy game of 1 and of 2")
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
        with findings.calling("learning", "on the toy game"):
            check_learning(trial, policy, root, seeds, settings, findings, turns)
    report = findings.report(named, "a method")
    if not report.ok:
        raise ConformanceError(str(report))
    return report
