"""The phases of a run and the process that runs one: ``python -m iterpo.experiments.phases``."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from iterpo.artifacts import naming_full_disk
from iterpo.errors import IterpoError, UnknownNameError, missing_extra
from iterpo.experiments.events import Report, encode
from iterpo.experiments.ledger import PLAN
from iterpo.experiments.plan import load_plan

__all__ = ["PHASES", "TIMINGS", "as_child", "execute", "main"]

PHASES = {
    "preflight": "iterpo.experiments.preflight:preflight",
    "deploy": "iterpo.experiments.rollout:deploy",
    "update": "iterpo.experiments.learn:update",
}
"""Phase name -> function(run folder, plan, key, report). ``update`` must not reach a simulator."""

TIMINGS = "timings.jsonl"
"""Wall-clock facts of the run; kept apart from results, which hold none."""


def execute(folder: Path, key: str, report: Report) -> None:
    """Run one phase in this process, and note its time and peak memory."""
    plan = load_plan(str(folder / PLAN), [])
    name = key.rpartition("/")[2]
    if name not in PHASES:
        raise UnknownNameError(f"no phase {key!r}; phases are {', '.join(PHASES)}")
    started = time.monotonic()
    if plan.policy.threads:
        import_module("torch").set_num_threads(plan.policy.threads)
    module, _, function = PHASES[name].partition(":")
    getattr(import_module(module), function)(folder, plan, key, report)
    row = {
        "phase": key,
        "pid": os.getpid(),
        "wall_s": round(time.monotonic() - started, 3),
        "peak_memory_mb": round(_peak_memory_mb(), 1),
    }
    with (folder / TIMINGS).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row, sort_keys=True) + "\n")


def main(arguments: list[str]) -> int:
    """Entry of a phase process: RUN_FOLDER KEY EVENT_FD."""
    folder, key, descriptor = Path(arguments[0]), arguments[1], int(arguments[2])
    return as_child(folder, descriptor, lambda report: execute(folder, key, report))


def as_child(folder: Path, descriptor: int, work: Callable[[Report], None]) -> int:
    """Do the work of a child process; its exit code.

    Args:
        folder: Where it writes.
        descriptor: Of the pipe that its events go to.
        work: What to do. An error that is raised on purpose becomes a message on standard error.
    """
    _end_with_parent()
    with os.fdopen(descriptor, "w", encoding="utf-8", buffering=1) as pipe:
        try:
            with naming_full_disk(folder):
                work(lambda event: _tell(pipe.write, encode(event)))
        except (IterpoError, ModuleNotFoundError) as error:
            told = error if isinstance(error, IterpoError) else missing_extra(error, "a run")
            if told is None:
                raise
            sys.stderr.write(f"\niterpo: {told}\n")
            return 2
    return 0


def _tell(write: Callable[[str], int], line: str) -> None:
    # A listener that went away is noticed by _end_with_parent; telling must not end the work.
    with contextlib.suppress(BrokenPipeError):
        write(line)


def _end_with_parent() -> None:
    """Leave at once when the parent dies, however it dies: its end of our stdin closes then."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            os.read(0, 1)
        for child in multiprocessing.active_children():  # an engine would keep its GPU memory
            child.terminate()
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


def _peak_memory_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 if sys.platform != "darwin" else peak / 1024**2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
