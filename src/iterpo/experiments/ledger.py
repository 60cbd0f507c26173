"""What of a run is done: a look-up over sealed folders, so resuming needs no bookkeeping."""

from __future__ import annotations

import fcntl
import json
import time
from pathlib import Path
from typing import IO, Any

from iterpo.artifacts import MANIFEST, file_sha256, is_sealed, open_sealed, write_atomic
from iterpo.config import canonical_yaml
from iterpo.errors import ArtifactError, ResumeError
from iterpo.experiments.plan import Plan, load_plan
from iterpo.experiments.versions import keep_versions

__all__ = ["LEDGER", "PLAN", "Ledger", "difference", "has_work", "hold"]

PLAN = "plan.yaml"
LEDGER = "ledger.json"
_LOCK = ".lock"
_LOCK_WAIT_S = 20.0


class Ledger:
    """A run folder: its plan, its lock, and which phases are finished.

    The lock is held while the object is open, also by the phase processes that inherit it: two
    processes never write one run, even when a killed parent leaves a child behind for a moment.
    """

    def __init__(self, folder: Path, plan: Plan, lock: IO[bytes]) -> None:
        """Use ``Ledger.open``."""
        self.folder = folder
        self.plan = plan
        self._lock = lock

    @classmethod
    def open(cls, folder: Path, plan: Plan, *, resume: bool) -> Ledger:
        """Start a run in ``folder``, or continue the one that is there.

        Raises:
            ResumeError: if the folder holds a run and ``resume`` is false, if it holds a run of
                another plan (the message lists what differs), or if another process works on it.
        """
        known = folder / PLAN
        begun = known.exists() and has_work(folder)
        if begun:
            _check_same_plan(folder, plan, resume)
        elif not known.exists() and folder.exists() and any(map(_foreign, folder.iterdir())):
            raise ResumeError(
                f"{folder} is not empty and holds no run. Name a new or empty folder with --out."
            )
        lock = hold(folder)
        if not begun and known.exists() and has_work(folder):
            lock.close()
            raise ResumeError(
                f"another process has begun a run in {folder} meanwhile. Continue it with "
                "--resume, or choose another folder with --out."
            )
        # New, refused by the checks of its preflight (a corrected plan takes it over), or resumed:
        # what changes no result may change then, such as a server's address or a data folder.
        write_atomic(known, canonical_yaml(plan))
        if not begun:
            keep_versions(folder, plan, begun=False)
        return cls(folder, plan, lock)

    @property
    def lock_fd(self) -> int:
        """File descriptor that keeps the lock; passed on to phase processes."""
        return self._lock.fileno()

    def path(self, key: str) -> Path:
        """Folder of a phase."""
        return self.folder / key

    def done(self, key: str) -> bool:
        """Whether a phase was finished."""
        return is_sealed(self.path(key))

    def verify(self, key: str) -> dict[str, Any]:
        """Check a finished phase against its checksums; returns its facts.

        Raises:
            ArtifactError: if a file is missing, truncated or changed.
        """
        facts: dict[str, Any] = open_sealed(self.path(key))["facts"]
        return facts

    def note_versions(self) -> str:
        """Keep the versions that go on from here; a warning where they are others than before."""
        return keep_versions(self.folder, self.plan, begun=True)

    def note(self, keys: list[str]) -> None:
        """Write the ledger: every finished phase with the hash of its manifest."""
        rows = [
            {"phase": key, "manifest_sha256": file_sha256(self.path(key) / MANIFEST)}
            for key in keys
            if self.done(key)
        ]
        ledger = {"plan_sha256": self.plan.identity(), "phases": rows}
        write_atomic(self.folder / LEDGER, json.dumps(ledger, indent=1, sort_keys=True) + "\n")

    def close(self) -> None:
        """Give the run folder free."""
        self._lock.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _foreign(path: Path) -> bool:
    """Whether a file is no left-over of a start that was killed before its plan was written."""
    return path.name not in (_LOCK, f".{PLAN}.part")


def has_work(folder: Path) -> bool:
    """Whether a run got past its preflight, so that there is something to lose."""
    return is_sealed(folder / "preflight") or any(folder.glob("round-*"))


def hold(folder: Path, name: str = _LOCK) -> IO[bytes]:
    """The lock of a folder, held until the file is closed.

    Args:
        folder: Made if absent.
        name: Its file; work of another kind in the same folder has a lock of its own.

    Raises:
        ResumeError: if another process has it, and keeps it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / name).open("ab")
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > deadline:
                lock.close()
                raise ResumeError(
                    f"another process is working on {folder}. Wait for it, stop it, "
                    "or choose another folder with --out."
                ) from None
            time.sleep(0.2)


def _check_same_plan(folder: Path, plan: Plan, resume: bool) -> None:
    if not resume:
        raise ResumeError(
            f"{folder} already holds a run. Continue it with --resume, or choose another folder "
            "with --out."
        )
    try:
        known = load_plan(str(folder / PLAN), [])
    except ValueError as error:
        raise ArtifactError(
            f"{folder / PLAN} can't be read ({error}); start a new run in another folder."
        ) from error
    if known.identity() == plan.identity():
        _check_unedited(folder, plan)
        return
    lines = difference(known, plan)
    raise ResumeError(
        f"{folder} belongs to another plan. What differs (there -> given):\n  "
        + "\n  ".join(lines)
        + "\nResume with the plan that it was started with, or choose another folder with --out."
    )


def _check_unedited(folder: Path, plan: Plan) -> None:
    """An emptied plan.yaml is a valid plan of defaults, and would go on as another experiment."""
    try:
        noted = json.loads((folder / LEDGER).read_text())["plan_sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # killed before it was written; it is written anew from the phases
    if noted != plan.identity():
        raise ArtifactError(
            f"{folder / PLAN} is not the plan that this run was started with ({folder / LEDGER} "
            f"notes {str(noted)[:12]}, the file gives {plan.identity()[:12]}): it was changed or "
            "cut off. Restore it, or start a new run in another folder."
        )


def difference(known: Plan, given: Plan) -> list[str]:
    """What differs between two plans, a line for each key."""
    old, new = _flat(known.as_dict()), _flat(given.as_dict())
    keys = sorted(set(old) | set(new))
    return [f"{k}: {old.get(k)!r} -> {new.get(k)!r}" for k in keys if old.get(k) != new.get(k)]


def _flat(mapping: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, dict) and value:
            out |= _flat(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out
