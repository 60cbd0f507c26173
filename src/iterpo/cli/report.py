"""``iterpo report``: tables, plots and one self-contained page of runs, studies or records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iterpo.cli.options import Json
from iterpo.cli.output import examples, print_json, say

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "report"
EXAMPLES = examples(
    "iterpo report runs/demo",
    "iterpo report runs/compare --out reports/compare --against base",
    "iterpo report benchmarks/results/improvement-nano.json --out reports/improvement",
)


def command(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Run folders, study folders, or JSON files of records."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder to write to; by default report in the first folder, or beside the file.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Whom to compare with: a method, base or a fixed agent; by default the study's "
            "reference, or base where there is one method."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write index.html, report.md, tables/*.csv and plots/*.svg and *.png; nothing is trained.

    The page needs no network and runs no script. What the sources do not tell is said in its
    place.
    """
    from iterpo.report.build import write_report

    first = sources[0]
    beside = first.with_name(f"{first.stem}-report") if first.is_file() else first / "report"
    written = write_report(sources, out or beside, against)
    if as_json:
        parts = {"tables": written.tables, "plots": written.plots, "missing": written.missing}
        print_json({"page": str(written.page), "summary": written.summary, **parts})
        return
    for line in written.summary:
        say(line)
    for line in written.missing:
        say(f"not in the report: {line}")
    say(f"the page is {written.page}")
