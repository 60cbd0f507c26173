"""One round-0 batch for all methods of a seed: whoever is first collects it, the others take it.

Until its first update a run is the same under every method: pi_0 plays the same kernels from the
same seeds. Sharing the batch saves that time, and makes sure that methods start from the same data.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from iterpo.artifacts import MANIFEST, file_sha256, is_sealed, open_sealed, write_atomic
from iterpo.errors import ArtifactError
from iterpo.experiments.phases import TIMINGS
from iterpo.experiments.plan import Plan

__all__ = ["FIRST", "ORIGIN", "batch_key", "origin_of", "take_batch"]

FIRST = "round-0/deploy"
"""The phase that is shared."""
ORIGIN = "round-0/origin.json"
"""Where a shared batch comes from; beside the phase, whose bytes are the same everywhere."""

_DEPENDS_ON = ("seed", "environment", "partner", "policy", "collect", "heldout")


def batch_key(plan: Plan) -> str:
    """Equal exactly for plans whose round 0 is the same batch.

    It depends on the game, the partner, pi_0, how it samples and explores, the kernels and the
    seed, and on the discount at which its return and J* are told; on nothing of the method.
    """
    values = plan.as_dict()
    told = {name: values[name] for name in _DEPENDS_ON} | {"gamma": plan.q.gamma}
    told["environment"] = {**values["environment"]}
    told["environment"]["options"] = {
        k: v for k, v in values["environment"]["options"].items() if k != "data_dir"
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def take_batch(source: Path, target: Path) -> None:
    """Give the run in ``target`` the round-0 batch of the run in ``source``, bit for bit.

    Files are linked where the disk allows it, else copied. What the batch is and where it comes
    from is noted in ``ORIGIN``. Killed in between, it is begun anew.

    Raises:
        ArtifactError: if the batch is unfinished, or a file of it does not match its checksum.
    """
    batch, place = source / FIRST, target / FIRST
    open_sealed(batch, "deploy")
    sha256 = file_sha256(batch / MANIFEST)
    part = place.with_name(f".{place.name}.part")
    for left_over in (part, place):
        if left_over.exists():
            shutil.rmtree(left_over)
    part.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(batch, part, copy_function=_link_or_copy)
    origin = {
        "run": os.path.relpath(source, target),
        "manifest_sha256": sha256,
        "wall_s": _wall_s(source),
    }
    write_atomic(target / ORIGIN, json.dumps(origin, indent=1, sort_keys=True) + "\n")
    part.rename(place)
    origin_of(target)


def origin_of(run: Path) -> dict[str, Any] | None:
    """Where a run's round-0 batch comes from; None if it was collected in the run itself.

    Raises:
        ArtifactError: if the batch is not the one that was taken.
    """
    if not (run / ORIGIN).is_file() or not is_sealed(run / FIRST):
        return None
    origin: dict[str, Any] = json.loads((run / ORIGIN).read_text())
    found = file_sha256(run / FIRST / MANIFEST)
    if found != origin["manifest_sha256"]:
        raise ArtifactError(
            f"{run / FIRST} is not the batch that was taken from {origin['run']}: its manifest has "
            f"the hash {found[:12]}, not {origin['manifest_sha256'][:12]}. Delete {run} and run "
            "the study again."
        )
    return origin


def _link_or_copy(source: str, target: str) -> None:
    # Sealed files are replaced, never written into, so sharing their bytes is safe.
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _wall_s(run: Path) -> float:
    """What collecting it took there."""
    lines = (run / TIMINGS).read_text().splitlines() if (run / TIMINGS).is_file() else []
    rows = [row for line in lines if (row := json.loads(line))["phase"] == FIRST]
    return float(rows[-1]["wall_s"]) if rows else 0.0
