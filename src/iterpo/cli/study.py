"""``iterpo study``: methods x environments x seeds of one plan, resumable, and what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from iterpo.cli.options import Json, Settings
from iterpo.cli.output import examples, print_json, remark, say

__all__ = ["app", "run", "show"]


class _RunByDefault(TyperGroup):
    """``iterpo study FILE`` is ``iterpo study run FILE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunByDefault,
    help=(
        "Compare methods: environments x methods x seeds of one plan.\n\n"
        "`iterpo study FILE` is short for `iterpo study run FILE`."
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command(
    epilog=examples(
        "iterpo study run smoke --jobs 2",
        "iterpo study run compare.yaml --out runs/compare --set seeds=[1,2,3] --set plan.rounds=2",
    )
)
def run(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY", help="YAML file, built-in study (smoke), or the folder of a study."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Study folder; by default runs/<name of the study>."),
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, help="Cells side by side, each in a process.")
    ] = 1,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Run what is missing of a study, then print its tables.

    Every cell (an environment, a method and a seed) is an ordinary run in
    cells/ENVIRONMENT/METHOD/seed-N. Finished cells are looked up, so the same command goes on after
    a kill, tries failed cells again, and adds what was added to the study. All methods of a seed
    start from one round-0 batch. Exit status 1: at least one cell failed.
    """
    from iterpo.cli.plans import read_study_file
    from iterpo.cli.progress import listening
    from iterpo.cli.study_tables import print_study, study_as_json
    from iterpo.experiments.study_cell import STUDY
    from iterpo.experiments.study_loop import run_study
    from iterpo.experiments.study_records import read_study

    planned = read_study_file(study, settings)
    stored = Path(study) if (Path(study) / STUDY).is_file() else Path("runs") / planned.name
    folder = out or stored
    with listening() as report:
        result = run_study(planned, folder, jobs=jobs, report=report)
    facts = read_study(folder)
    if as_json:
        print_json(study_as_json(facts, None))
    else:
        print_study(facts, None)
        say(f"everything is in {folder}; again: iterpo study show {folder}")
    for cell, why in result.failed.items():
        remark(f"iterpo: cell {cell} failed: {why}")
    if result.failed:
        remark(f"iterpo: {len(result.failed)} of {result.cells} cells failed")
        raise typer.Exit(1)


@app.command(epilog=examples("iterpo study show runs/compare --against base"))
def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Study folder.")],
    against: Annotated[
        str | None,
        typer.Option(
            help="Whom to compare with: a method, base or a fixed agent; by default the "
            "study's reference."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a study has found so far: standings, differences, causes of the gain, and costs.

    Only records.json and kernels.parquet are read; the run folders may be gone.
    """
    from iterpo.cli.study_tables import print_study, study_as_json
    from iterpo.experiments.study_records import read_study

    facts = read_study(folder)
    if as_json:
        print_json(study_as_json(facts, against))
    else:
        print_study(facts, against)
