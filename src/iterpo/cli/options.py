"""Options that several commands share, each with one spelling and one help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Conversations", "EnvOptions", "Json", "Model", "OutFolder", "Settings"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="a.b=c",
        help="Overrule one key; the value is read as YAML. May be given several times.",
    ),
]

Model = Annotated[
    str,
    typer.Option(
        "--policy",
        help="Embedded model, local model folder, hub id, or a policy folder made by iterpo.",
    ),
]

Conversations = Annotated[
    Path, typer.Argument(help="Conversation log: a .jsonl file, or a folder that holds one.")
]

OutFolder = Annotated[Path, typer.Option("--out", help="Folder to write to.")]

EnvOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="name=value",
        help="Option of the game (`iterpo envs show NAME` lists them). Several times.",
    ),
]
