"""Updates that are killed at chosen moments and started again, and what they leave."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from iterpo.experiments import learn
from iterpo.experiments.events import ignore
from iterpo.experiments.plan import Plan


def update(
    run: Path, plan: Plan, i: int, monkeypatch: pytest.MonkeyPatch, moments: Sequence[Any] = ()
) -> None:
    """Update round i, killed first at the call of each (owner, name) among ``moments``."""
    for owner in moments:
        with monkeypatch.context() as m:
            m.setattr(*owner, _kill)
            with pytest.raises(KeyboardInterrupt):
                learn.update(run, plan, f"round-{i}/update", ignore)
    learn.update(run, plan, f"round-{i}/update", ignore)


def left(run: Path) -> dict[str, bytes]:
    """All files but the logs, by their paths."""
    return {
        str(p.relative_to(run)): p.read_bytes()
        for p in sorted(run.rglob("*"))
        if p.is_file() and "logs" not in p.parts
    }


def _kill(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
