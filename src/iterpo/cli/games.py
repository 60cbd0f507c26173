"""How commands make a game: its options from the command line, its data from ITERPO_DATA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iterpo.environments.base import Environment

__all__ = ["make_game", "with_data"]


def make_game(name: str, options: Mapping[str, Any]) -> Environment:
    """A game; where it reads a data set and none is named, ITERPO_DATA says where that is."""
    from iterpo import environments

    return environments.make(name, **with_data(name, options))


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
