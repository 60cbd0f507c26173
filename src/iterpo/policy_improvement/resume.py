"""Checkpoints inside the phase: sealed when complete, refused for other inputs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from iterpo import artifacts
from iterpo.errors import ArtifactError, ResumeError

__all__ = ["Resumable", "checkpoint_facts", "newest_checkpoint", "seal_checkpoint"]

_KIND = "training-checkpoint"


class Resumable(Protocol):
    """A training that can go on from a checkpoint."""

    @property
    def workdir(self) -> Path:
        """Folder of checkpoints."""
        ...

    @property
    def inputs_sha256(self) -> str:
        """Identity of all inputs; a checkpoint of others is refused."""
        ...


def seal_checkpoint(folder: Path, job: Resumable, facts: Mapping[str, Any]) -> None:
    """Mark a written checkpoint as complete, then remove the older ones."""
    artifacts.seal(folder, _KIND, {**facts, "inputs_sha256": job.inputs_sha256})
    for other in job.workdir.glob("checkpoint-*"):
        if other != folder:
            shutil.rmtree(other)


def checkpoint_facts(folder: Path) -> Mapping[str, Any]:
    """The facts stored with a checkpoint, after checking its files."""
    facts: Mapping[str, Any] = artifacts.open_sealed(folder, _KIND)["facts"]
    return facts


def newest_checkpoint(job: Resumable) -> Path | None:
    """The newest complete checkpoint of this job; incomplete ones are removed.

    Raises:
        ResumeError: if one was written for other inputs.
    """
    found: list[tuple[int, Path]] = []
    for folder in sorted(job.workdir.glob("checkpoint-*")):
        try:
            facts = checkpoint_facts(folder)
        except ArtifactError:
            shutil.rmtree(folder)  # cut off while it was written
            continue
        if facts["inputs_sha256"] != job.inputs_sha256:
            raise ResumeError(
                f"{folder} was written for another policy, batch or settings; resume with the same "
                f"ones, or delete {job.workdir} to begin anew."
            )
        found.append((int(folder.name.rpartition("-")[2]), folder))
    return max(found)[1] if found else None
