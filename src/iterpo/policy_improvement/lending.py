"""A policy lent to a trainer, and given back as if it had never been lent."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["known_warnings_off", "lent"]


@contextmanager
def lent(model: Any) -> Iterator[None]:
    """Undo what a trainer does to a ``PeftModel``: patches, hooks, activation checkpointing."""
    inner = model.get_base_model()
    patched = [(m, m.__dict__.get("forward")) for m in (inner, model)]
    embeddings = inner.get_input_embeddings()
    hooks = set(embeddings._forward_hooks)
    try:
        yield
    finally:
        for module, forward in patched:
            module.__dict__.pop("forward", None)
            if forward is not None:
                module.__dict__["forward"] = forward
        for hook in set(embeddings._forward_hooks) - hooks:  # the trainer loses sight of some
            del embeddings._forward_hooks[hook]
        inner.activation_checkpointing_disable()
        model.zero_grad(set_to_none=True)
        model.eval()


@contextmanager
def known_warnings_off() -> Iterator[None]:
    """Leave out what TRL says on every run and no user of ours can act on."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You are using 'rollout_func'")
        warnings.filterwarnings("ignore", message=".*gradient_checkpointing.* is deprecated")
        yield
