"""Makes deployed conversational agents better from their own conversations."""

from importlib import import_module
from typing import Any

from iterpo import api as api
from iterpo import collect as collect
from iterpo import environments as environments
from iterpo.api import fit_q, improve, load_policy, read

__all__ = ["__version__", "collect", "environments", "fit_q", "improve", "load_policy", "read"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Layers by name, loaded on first use."""
    if name in {"agents", "domain", "experiments", "measure", "methods", "models", "store"}:
        return import_module(f"iterpo.{name}")
    raise AttributeError(f"module 'iterpo' has no attribute {name!r}")
