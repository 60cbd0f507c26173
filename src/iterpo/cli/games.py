"""How commands make a game: its options from the command line, its data from ITERPO_DATA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iterpo.cli.output import remark

if TYPE_CHECKING:
    from iterpo.domain import Scenario, Split
    from iterpo.environments.base import Environment
    from iterpo.experiments.speakers import Speaker

__all__ = ["game_for", "kernel_of", "make_game", "use_threads", "with_data"]

_GAMES_OF_NANO = (
    "alliance",
    "casino",
    "craigslist",
    "deal_or_no_deal",
    "job_interview",
    "ultimatum",
)


def make_game(name: str, options: Mapping[str, Any]) -> Environment:
    """A game; where it reads a data set and none is named, ITERPO_DATA says where that is."""
    from iterpo import environments

    return environments.make(name, **with_data(name, options))


def game_for(name: str, settings: Sequence[str] | None, speakers: Sequence[Speaker]) -> Environment:
    """A game with the ``--option`` settings, worded for those who will play it.

    The embedded nano reads compact prompts only: where it plays and no ``prompt_style`` is given,
    compact ones are taken, and that is said. So is that it plays a game it has not learned.
    """
    from iterpo.config import override
    from iterpo.experiments.speakers import is_nano

    options = override({}, settings or ())
    game = make_game(name, options)
    style = getattr(game.options, "prompt_style", None)
    if not any(map(is_nano, speakers)):
        return game
    if name not in _GAMES_OF_NANO:
        remark(f"nano has learned {', '.join(_GAMES_OF_NANO)} only: it won't make sense here")
    if "prompt_style" in options or style in (None, "compact"):
        return game
    remark("nano reads compact prompts only: playing with --option prompt_style=compact")
    return make_game(name, options | {"prompt_style": "compact"})


def kernel_of(game: Environment, split: Split, number: int) -> Scenario:
    """The kernel of that number within a split."""
    return game.scenarios(split, number + 1)[number]


def with_data(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with ``data_dir`` filled in and absolute, for games that have that option."""
    from iterpo import environments
    from iterpo.config import data_folder

    out = dict(options)
    game: Any = environments.make(name, **out)
    if "data_dir" in {f.name for f in fields(game.options)}:
        given = out.get("data_dir") or data_folder()
        if given:
            out["data_dir"] = str(Path(given).expanduser().absolute())
    return out


def use_threads(threads: int | None, speakers: Sequence[Speaker]) -> None:
    """Let models of this process compute on so many CPU threads; None leaves the default."""
    from iterpo.experiments.speakers import Local

    if threads is not None and any(isinstance(speaker, Local) for speaker in speakers):
        import torch

        torch.set_num_threads(threads)
