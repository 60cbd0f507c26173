"""Places and settings that the environment names; nothing else reads environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["cache_folder", "data_folder", "environment_overrides"]


def cache_folder() -> Path:
    """Where converted models are kept: ITERPO_CACHE, XDG_CACHE_HOME/iterpo or ~/.cache/iterpo."""
    if own := os.environ.get("ITERPO_CACHE"):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "iterpo"
    return Path.home() / ".cache" / "iterpo"


def data_folder() -> Path | None:
    """The folder with the raw data sets, from ITERPO_DATA; None if that is not set."""
    given = os.environ.get("ITERPO_DATA")
    return Path(given).expanduser() if given else None


def environment_overrides(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """``ITERPO__A__B=c`` variables as ``a.b=c`` settings for ``override``, sorted by key.

    >>> environment_overrides({"ITERPO__IMPROVE__BETA": "0.02", "HOME": "/"})
    ('improve.beta=0.02',)
    """
    source = os.environ if environ is None else environ
    prefix = "ITERPO__"
    return tuple(
        f"{name[len(prefix) :].lower().replace('__', '.')}={value}"
        for name, value in sorted(source.items())
        if name.startswith(prefix)
    )
