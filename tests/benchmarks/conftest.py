"""The benchmarks' own modules, which are scripts beside each other and no package."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

LEARNING = Path(__file__).parents[2] / "benchmarks" / "learning"


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a module of benchmarks/learning by its name."""
    monkeypatch.syspath_prepend(str(LEARNING))
    return importlib.import_module
