"""A policy lent to a trainer, and given back as if it had never been lent."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["known_warnings_off", "lent"]


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


@contextmanager
def known_warnings_off() -> Iterator[None]:
    """Leave out what TRL says on every run and no user of ours can act on."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You are using 'rollout_func'")
        warnings.filterwarnings("ignore", message=".*gradient_checkpointing.* is deprecated")
        yield
