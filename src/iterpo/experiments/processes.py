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
from collections.abc import Iterator, Sequence
from pathlib import Path

from iterpo.errors import PhaseError, StorageFullError
from iterpo.experiments import events

__all__ = ["Child", "spawn"]

_TAIL_LINES = 15
_SMALL_FILE = 4096
_GRACE_S = 5.0
_CHUNK = 1 << 16


def spawn(folder: Path, key: str, lock_fd: int, report: events.Report) -> None:
    """Run a phase of the run in ``folder`` and forward its events.

    Raises:
        StorageFullError: if there was no room even for its log.
        PhaseError: if the process ends without finishing; the message holds the end of its log.
    """
    log = folder / "logs" / f"{key.replace('/', '-')}.log"
    with Child("iterpo.experiments.phases", [str(folder), key], log, (lock_fd,)) as child:
        for event in child.events():
            report(event)
        code = child.wait()
    if code > 0 and not log.stat().st_size and not _room(log.parent):
        raise StorageFullError(
            f"the disk that holds {folder} is full, so phase {key} could not even write its log. "
            "Everything finished before is kept: free some space and run the same command with "
            "--resume."
        )
    if code != 0:
        raise PhaseError(child.explain(f"phase {key}", "resume with --resume"))


class Child:
    """A process of ours that tells events over a pipe, and ends when the block or we do."""

    def __init__(
        self, module: str, arguments: Sequence[str], log: Path, pass_fds: Sequence[int] = ()
    ) -> None:
        """Start ``python -m module arguments… EVENT_FD``; what it prints is appended to ``log``."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        self._pipe, writing = os.pipe()
        self._cut = b""
        command = [sys.executable, "-m", module, *arguments, str(writing)]
        with log.open("ab") as sink:
            self._start = sink.tell()  # what earlier attempts wrote is not this one's error
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                command,
                stdin=subprocess.PIPE,  # never written to: its end tells the child that we are gone
                stdout=sink,
                stderr=sink,
                pass_fds=(writing, *pass_fds),
            )
        os.close(writing)

    def fileno(self) -> int:
        """The pipe, for selectors: readable when there is an event or the process has ended."""
        return self._pipe

    def read(self) -> list[events.Event] | None:
        """Events that are there, waiting for some; None once there will be no more."""
        chunk = os.read(self._pipe, _CHUNK)
        *lines, self._cut = (self._cut + chunk).split(b"\n")
        return [events.decode(line.decode()) for line in lines] if chunk else None

    def events(self) -> Iterator[events.Event]:
        """All events, as they come."""
        while (some := self.read()) is not None:
            yield from some

    def wait(self) -> int:
        """Wait for the end; the exit code."""
        return self._process.wait()

    def explain(self, what: str, remedy: str) -> str:
        """Why it failed: its own message where it has one, else the end of its log."""
        return _explain(what, self._process.returncode, self._log, self._start, remedy)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process if it has not ended, and let go of the pipe."""
        process = self._process
        os.close(self._pipe)
        if process.stdin:
            process.stdin.close()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)  # so that it can end what it has started itself
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _room(folder: Path) -> bool:
    return shutil.disk_usage(folder).free >= _SMALL_FILE


def _explain(what: str, code: int, log: Path, start: int, remedy: str) -> str:
    text = log.read_bytes()[start:].decode(errors="replace")
    lines = text.rstrip().splitlines()
    marks = [i for i, line in enumerate(lines) if line.startswith("iterpo: ")]
    if marks:  # an error that we raised on purpose: its message is enough
        return "\n".join(lines[marks[-1] :]).removeprefix("iterpo: ")
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    hint = " (out of memory?)" if code == -9 else ""
    tail = "\n  ".join(lines[-_TAIL_LINES:])
    return (
        f"{what} ended with {how}{hint}. Finished work is kept; {remedy}.\n"
        f"The end of {log}:\n  {tail}"
    )
