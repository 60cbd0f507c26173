"""Public checks and toy parts for people who extend iterpo."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iterpo.testing.conformance import check_environment
from iterpo.testing.report import Report

if TYPE_CHECKING:
    from iterpo.testing.method_conformance import check_method

__all__ = ["Report", "check_environment", "check_method"]


def __getattr__(name: str) -> object:
    # Whoever checks a game needs no torch.
    if name == "check_method":
        from iterpo.testing.method_conformance import check_method

        return check_method
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
