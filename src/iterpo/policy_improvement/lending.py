"""A policy lent to a trainer, and given back as if it had never been lent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["lent"]


@contextmanager
def lent(model: Any) -> Iterator[None]:
    """Let a trainer patch the ``forward`` methods of a ``PeftModel``, and undo it afterwards."""
    patched = [(m, m.__dict__.get("forward")) for m in (model.get_base_model(), model)]
    try:
        yield
    finally:
        for module, forward in patched:
            module.__dict__.pop("forward", None)
            if forward is not None:
                module.__dict__["forward"] = forward
        model.zero_grad(set_to_none=True)
        model.eval()
