"""Which kernels of a data set are played: drawn from all of a split by the data seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from iterpo.domain import Split
from iterpo.errors import ConfigError

__all__ = ["first_kernels"]

T = TypeVar("T")


def first_kernels(
    game: str, code: int, split: Split, kernels: Sequence[T], n: int, data_seed: int
) -> tuple[T, ...]:
    """The first ``n`` kernels of a split, in an order drawn from ``data_seed``.

    Args:
        game: Registry name of the game, for the message.
        code: Number of the game.
        split: Train or held-out.
        kernels: All kernels of the split, sorted by kernel_id.
        n: How many are wanted.
        data_seed: Seed of the order.

    Raises:
        ConfigError: if the split holds fewer than ``n`` kernels.
    """
    import numpy as np  # importing an environment stays light

    if n > len(kernels):
        raise ConfigError(
            f"{game} has {len(kernels)} {split.value} kernels, {n} were asked for; "
            f"ask for at most {len(kernels)}"
        )
    order = np.random.default_rng([data_seed, code, split.code]).permutation(len(kernels))
    return tuple(kernels[int(i)] for i in order[:n])
