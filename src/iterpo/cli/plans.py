"""How commands read a plan: file, run folder or preset, then environment, then ``--set``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iterpo.experiments.plan import Plan

__all__ = ["read_plan"]


def read_plan(source: str, settings: Sequence[str] | None) -> Plan:
    """A checked plan, the game and its options included.

    Raises:
        ConfigError: with all mistakes at once.
        UnknownNameError: if there is no such game.
    """
    from iterpo.cli.games import with_data
    from iterpo.config import environment_overrides
    from iterpo.experiments.ledger import PLAN
    from iterpo.experiments.plan import load_plan

    stored = Path(source) / PLAN
    if stored.is_file():  # a run folder: its plan is complete, the environment has no say
        plan = load_plan(stored, settings or ())
    else:
        plan = load_plan(source, [*environment_overrides(), *(settings or ())])
    options = with_data(plan.environment.name, plan.environment.options)
    return replace(plan, environment=replace(plan.environment, options=options))
