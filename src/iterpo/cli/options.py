"""Options that several commands share, each with one spelling and one help text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from iterpo.domain import Sampling, Split

__all__ = [
    "SPEAKERS",
    "AgentSpec",
    "Conversations",
    "EnvOptions",
    "Json",
    "Kernel",
    "MaxNewTokens",
    "Model",
    "OutFolder",
    "PartnerSpec",
    "Settings",
    "SplitName",
    "Temperature",
    "Threads",
    "TopP",
    "lies_at_a_file",
    "read_sampling",
    "read_split",
]

SPEAKERS = "\n\n".join(
    (
        "Whoever speaks is named as one of",
        "- scripted: the game's rule-based partner, for which the best attainable return J* is "
        "known;",
        "- oracle, first-counter, random-offer: fixed agents; the oracle attains J* "
        "(per agent turn);",
        "- nano, smollm2-135m, the folder of a model or of a trained policy, or a hub id such as "
        "Qwen/Qwen2.5-0.5B-Instruct: a model in this process;",
        "- URL#MODEL, such as http://localhost:8000/v1#qwen: a model on an OpenAI-compatible "
        "server, whose key is read from OPENAI_API_KEY.",
    )
)
"""Part of the help of commands that seat speakers."""

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

AgentSpec = Annotated[
    str,
    typer.Option(
        "--agent",
        "--policy",
        metavar="WHO",
        help="Who is the agent: a model, a policy folder, URL#MODEL, or a fixed agent.",
    ),
]

PartnerSpec = Annotated[
    str,
    typer.Option(
        "--partner",
        metavar="WHO",
        help="Who is the partner: scripted, a model, a policy folder, or URL#MODEL.",
    ),
]

Temperature = Annotated[
    float, typer.Option(min=0.0, help="Temperature of every model that is seated; 0 is greedy.")
]

TopP = Annotated[float, typer.Option(min=0.0, max=1.0, help="Nucleus mass; 1 is off.")]

MaxNewTokens = Annotated[int, typer.Option(min=1, help="Longest response of a model in tokens.")]

Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1024,
        help="CPU threads of models in this process; changes rounding, hence results.",
    ),
]

Kernel = Annotated[int, typer.Option(min=0, help="Number of the kernel within its split.")]

SplitName = Annotated[str, typer.Option("--split", help="Kernels: train or heldout.")]

Conversations = Annotated[
    Path, typer.Argument(help="Conversation log: a .jsonl file, or a folder that holds one.")
]

OutFolder = Annotated[Path, typer.Option("--out", help="Folder to write to.")]

EnvOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="name=value",
        help="Option of the game (`iterpo envs show NAME` lists them), several times; "
        "ITERPO_DATA fills in `data_dir`.",
    ),
]


def lies_at_a_file(folder: Path) -> bool:
    """Whether a file stands where a folder, or one above it, is to be made."""
    return next((p for p in (folder, *folder.parents) if p.exists()), folder).is_file()


def read_split(name: str) -> Split:
    """The split that ``--split`` names.

    Raises:
        ConfigError: if there is none of that name.
    """
    from iterpo.domain import Split
    from iterpo.errors import ConfigError

    if name not in [s.value for s in Split]:
        raise ConfigError(f"--split is {name!r}; accepted: {', '.join(s.value for s in Split)}")
    return Split(name)


def read_sampling(temperature: float, top_p: float, max_new_tokens: int) -> Sampling:
    """The settings of the sampling options.

    Raises:
        ConfigError: if nothing could be drawn with them.
    """
    from iterpo.domain import Sampling
    from iterpo.errors import ConfigError

    sampling = Sampling(temperature=temperature, top_p=top_p, max_new_tokens=max_new_tokens)
    if wrong := sampling.mistakes():
        told = (text.partition(":") for text in wrong)
        raise ConfigError("\n".join(f"--{n.replace('_', '-')}:{rest}" for n, _, rest in told))
    return sampling
