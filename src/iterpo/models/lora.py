"""LoraSpec: the shape of the adapter that a policy grows; readable without torch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LoraSpec"]


@dataclass(frozen=True, slots=True)
class LoraSpec:
    """Shape of a LoRA adapter (the paper: r = 64, alpha = 64, Table 2)."""

    r: int = 64
    """Rank."""
    alpha: float = 64.0
    """Scale; updates are multiplied by ``alpha / r``."""
    dropout: float = 0.0
    """Dropout before the adapter; GRPO refuses any but 0, since it makes log-probs noisy."""
    target_modules: str | tuple[str, ...] = "all-linear"
    """Modules that get an adapter; ``all-linear`` leaves the output head out."""
