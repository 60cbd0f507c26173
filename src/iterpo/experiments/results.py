"""What a run folder says about its rounds, read from sealed phases alone."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iterpo.artifacts import is_sealed, open_sealed
from iterpo.domain import Split
from iterpo.domain.plugins import unchecked
from iterpo.errors import ArtifactError, MissingDataError
from iterpo.experiments.ledger import PLAN
from iterpo.experiments.loop import RESULT
from iterpo.experiments.phases import TIMINGS
from iterpo.experiments.plan import Plan, load_plan
from iterpo.experiments.versions import read_versions
from iterpo.measure.compare import compare
from iterpo.measure.intervals import Interval
from iterpo.store import read_conversations

__all__ = ["RoundFacts", "RunFacts", "heldout_gain", "read_run"]


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """One deployed policy pi_i and, where it was trained further, its update."""

    round: int
    """Index i."""
    deploy: dict[str, Any]
    """Facts of the deploy phase: policy, and measurements by split."""
    update: dict[str, Any] | None
    """Facts of the update that followed, with ``q_health``, ``verdict`` and its ``evidence``, and
    the ``parent`` of the new policy; None after the last round."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run as far as it has come."""

    folder: Path
    """Run folder."""
    plan: Plan
    """Its plan."""
    rounds: tuple[RoundFacts, ...]
    """Deployed policies so far."""
    best_round: int | None
    """First round of the policy with the highest collected J; None before the run has ended."""
    timings: tuple[dict[str, Any], ...]
    """Wall-clock seconds and peak memory by phase, in the order in which they ran."""
    versions: tuple[dict[str, str], ...] = ()
    """What it was made with, by package, as long as that stayed the same; empty where an earlier
    iterpo did not keep it."""


def read_run(folder: Path) -> RunFacts:
    """Read a run folder; every finished phase is verified against its checksums.

    Raises:
        MissingDataError: if the folder holds no run.
        ArtifactError: if a finished phase is corrupt or truncated.
    """
    if not (folder / PLAN).is_file():
        raise MissingDataError(
            f"{folder} holds no run (no {PLAN}). Give a folder that `iterpo run` or `iterpo demo` "
            "wrote, such as runs/demo."
        )
    with unchecked():  # the package of its method may be gone: it is only looked at
        plan = load_plan(folder / PLAN)
    rounds: list[RoundFacts] = []
    while is_sealed(folder / f"round-{len(rounds)}" / "deploy"):
        place = folder / f"round-{len(rounds)}"
        update = place / "update"
        rounds.append(
            RoundFacts(
                len(rounds),
                open_sealed(place / "deploy")["facts"],
                open_sealed(update)["facts"] if is_sealed(update) else None,
            )
        )
    return RunFacts(
        folder,
        plan,
        tuple(rounds),
        _best_round(folder / RESULT),
        _timings(folder / TIMINGS),
        read_versions(folder),
    )


def heldout_gain(run: RunFacts) -> Interval | None:
    """J of the best policy less that of pi_0 on held-out kernels, paired by kernel, at 95%.

    The best policy was chosen on training kernels, so this comparison is not flattered.

    Returns:
        None before the run has ended, and where pi_0 is still the best, also if it was deployed
        again in a later round.
    """
    if not run.best_round:
        return None
    names = [run.rounds[i].deploy.get("policy", i) for i in (0, run.best_round)]
    if names[0] == names[1]:  # an earlier version chose among rounds, not policies
        return None
    first, best = (
        read_conversations(run.folder / f"round-{i}" / "deploy" / Split.HELDOUT.value)
        for i in (0, run.best_round)
    )
    found = compare(best, first, run.plan.q.gamma)
    return found.J_message if run.plan.q.discount_unit == "message" else found.J_agent_turn


def _best_round(path: Path) -> int | None:
    if not path.is_file():
        return None
    try:
        return int(json.loads(path.read_text())["best_round"])
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"{path} is corrupt ({error}); it is written anew by `iterpo run {path.parent} "
            "--resume`, which skips all finished work."
        ) from error


def _timings(path: Path) -> tuple[dict[str, Any], ...]:
    """Rows that can be read: a kill or a full disk may have cut one off, and no result needs it."""
    rows: list[dict[str, Any]] = []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and {"phase", "wall_s", "peak_memory_mb"} <= row.keys():
                rows.append(row)
    return tuple(rows)
