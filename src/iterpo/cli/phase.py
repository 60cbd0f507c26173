"""``iterpo phase``: run one phase of a run in this process (for debugging; hidden)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iterpo.cli.output import examples, say

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "phase"
EXAMPLES = examples("iterpo phase runs/smoke round-0/deploy")


def command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder with its plan.")],
    key: Annotated[str, typer.Argument(help="Phase, such as round-0/update.")],
) -> None:
    """Run one phase in this process, with its output on the terminal."""
    from iterpo.cli.progress import listening
    from iterpo.experiments.phases import execute

    with listening() as report:
        execute(folder, key, report)
    say(f"{folder / key} is finished")
