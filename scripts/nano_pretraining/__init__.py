"""How the embedded model `nano` is made: scripted dialogues, tokenizer, training, quality table."""

from __future__ import annotations

__all__: list[str] = []
