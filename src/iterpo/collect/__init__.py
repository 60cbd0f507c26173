"""Stage 1: deploy pi_i, log D_i. Also callable: see ``iterpo.api.collect``."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from iterpo.collect.batch import JStar, Pace, Tally, collect, collect_into, seats
from iterpo.collect.play import Table, play

__all__ = ["JStar", "Pace", "Table", "Tally", "collect", "collect_into", "play", "seats"]


class _CallablePackage(ModuleType):
    """``iterpo.collect`` is the package of stage 1 and, called, the verb of the public API."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # By name, since this layer must not know the one above it (docs/decisions/0002).
        return import_module("iterpo.api").collect(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
