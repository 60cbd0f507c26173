"""Identity of a policy: which weights, grown from which policy, in which round."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

__all__ = ["PolicyRef"]


@dataclass(frozen=True, slots=True)
class PolicyRef:
    """Names a policy without holding weights.

    The adapter's content hash is part of the identity, so a name never stands for two sets of
    weights (stale caches behind a reused adapter name are a known trap).
    """

    base_model: str
    """Name that ``models.hub`` resolves: embedded default, local folder or hub id."""
    base_sha256: str
    """Content hash of the base weights."""
    adapter: str | None = None
    """Folder of the LoRA adapter; None for the base model itself."""
    adapter_sha256: str | None = None
    """Content hash of the adapter weights."""
    parent: str | None = None
    """``id`` of the policy that it was trained from."""
    round: int = 0
    """Updates between it and the initial policy: the index i of pi_i, where none was rolled back
    or discarded."""

    @property
    def id(self) -> str:
        """``r<round>-<8 hex digits>``, a hash of all that defines the weights and their origin."""
        facts = asdict(self)
        for place in ("adapter", "base_model"):  # a folder may move; the content hash stays
            facts.pop(place)
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return f"r{self.round}-{digest[:8]}"
