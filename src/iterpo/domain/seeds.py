"""The only source of randomness: seeds derived by hashing what they are for."""

from __future__ import annotations

import hashlib

__all__ = ["derive", "uniform"]


def derive(*parts: int | str) -> int:
    """A seed in [0, 2**63) from the names of what it seeds.

    Each (experiment, round, scenario, replica, …) has its own stream, so adding a scenario does
    not shift another one's draws, and no two requests share a stream by accident.

    >>> derive(42, "round", 0, "ult-p100-r4-0", 1) == derive(42, "round", 0, "ult-p100-r4-0", 1)
    True
    >>> derive("1", 2) == derive("12")
    False
    """
    text = "\x1f".join(f"{type(p).__name__}:{p}" for p in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def uniform(*parts: int | str) -> float:
    """A number in [0, 1) from the names of what it decides, with the 53 bits that a float holds.

    >>> uniform(42, "share") == uniform(42, "share") != uniform(42, "action")
    True
    """
    return (derive(*parts) >> 10) / 2**53
