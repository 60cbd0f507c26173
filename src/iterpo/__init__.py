"""Makes deployed conversational agents better from their own conversations."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iterpo import collect as collect
    from iterpo import environments as environments
    from iterpo.api import fit_q, improve, load_policy, read

__all__ = ["__version__", "collect", "environments", "fit_q", "improve", "load_policy", "read"]

__version__ = "0.1.0"

_VERBS = {"fit_q", "improve", "load_policy", "read"}
_LAYERS = {
    *("agents", "api", "collect", "domain", "environments", "experiments"),
    *("measure", "methods", "models", "store"),
}


def __getattr__(name: str) -> Any:
    """Verbs and layers by name, loaded on first use: training must not load a game."""
    if name in _VERBS:
        return getattr(import_module("iterpo.api"), name)
    if name in _LAYERS:
        return import_module(f"iterpo.{name}")
    raise AttributeError(f"module 'iterpo' has no attribute {name!r}")
