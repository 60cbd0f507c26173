"""Run one phase in a process of its own, so that its memory is really freed (pain 46).

The parent never imports torch. The child tells events over a pipe, writes what libraries print
to a log file, inherits the lock of the run folder, and ends itself when the parent is gone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from iterpo.errors import PhaseError, StorageFullError
from iterpo.experiments import events

__all__ = ["spawn"]

_TAIL_LINES = 15
_SMALL_FILE = 4096
_GRACE_S = 5.0


def spawn(folder: Path, key: str, lock_fd: int, report: events.Report) -> None:
    """Run a phase of the run in ``folder`` and forward its events.

    Raises:
        StorageFullError: if there was no room even for its log.
        PhaseError: if the process ends without finishing; the message holds the end of its log.
    """
    log = folder / "logs" / f"{key.replace('/', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "iterpo.experiments.phases", str(folder), key, str(writing)]
    with log.open("ab") as sink:
        start = sink.tell()  # what earlier attempts wrote is not this one's error
        child = subprocess.Popen(  # noqa: S603 - our own module
            command,
            stdin=subprocess.PIPE,  # never written to: its end tells the child that we are gone
            stdout=sink,
            stderr=sink,
            pass_fds=(writing, lock_fd),
        )
    os.close(writing)
    try:
        with os.fdopen(reading, encoding="utf-8") as lines:
            for line in lines:
                report(events.decode(line))
        code = child.wait()
    finally:
        if child.stdin:
            child.stdin.close()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_GRACE_S)  # so that it can end what it has started itself
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    if code > 0 and not log.stat().st_size and not _room(log.parent):
        raise StorageFullError(
            f"the disk that holds {folder} is full, so phase {key} could not even write its log. "
            "Everything finished before is kept: free some space and run the same command with "
            "--resume."
        )
    if code != 0:
        raise PhaseError(_explain(key, code, log, start))


def _room(folder: Path) -> bool:
    return shutil.disk_usage(folder).free >= _SMALL_FILE


def _explain(key: str, code: int, log: Path, start: int) -> str:
    text = log.read_bytes()[start:].decode(errors="replace")
    lines = text.rstrip().splitlines()
    marks = [i for i, line in enumerate(lines) if line.startswith("iterpo: ")]
    if marks:  # an error that we raised on purpose: its message is enough
        return "\n".join(lines[marks[-1] :]).removeprefix("iterpo: ")
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    hint = " (out of memory?)" if code == -9 else ""
    tail = "\n  ".join(lines[-_TAIL_LINES:])
    return (
        f"phase {key} ended with {how}{hint}. Finished work is kept; resume with --resume.\n"
        f"The end of {log}:\n  {tail}"
    )
