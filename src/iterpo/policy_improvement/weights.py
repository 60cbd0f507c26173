"""How much each logged response counts: by its class (KTO), or by its advantage (AWR)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from iterpo.errors import ConfigError

__all__ = ["advantage_weights", "class_weights"]

_LARGEST = 80.0  # e**80 is still a float32


def class_weights(agreed: Sequence[bool]) -> tuple[float, float]:
    """lambda_D and lambda_U = N / (2 n) of each class, so that both sum to N / 2 (appendix E.5).

    A class without an example has no weight of its own; it is given as 0.

    >>> desirable, undesirable = class_weights([True] * 30 + [False] * 10)
    >>> round(desirable, 3), undesirable
    (0.667, 2.0)
    >>> class_weights([True, True])
    (0.5, 0.0)
    """
    n, n_agreed = len(agreed), sum(agreed)
    desirable, undesirable = (n / (2 * k) if k else 0.0 for k in (n_agreed, n - n_agreed))
    return desirable, undesirable


def advantage_weights(
    advantages: Sequence[float],
    beta: float,
    *,
    weight_clip: float | None = None,
    normalise: bool = False,
) -> list[float]:
    """Weights exp(beta A) of advantage-weighted regression (ArCHer's actor).

    Args:
        advantages: A of each response.
        beta: Inverse temperature, 0 or more; 0 gives every response the weight 1.
        weight_clip: Largest weight; None: none is cut.
        normalise: Whether to divide by their mean, after clipping.

    Raises:
        ConfigError: if a weight has no bound and overflows.

    >>> [round(w, 3) for w in advantage_weights([0.2, -0.1], 10)]
    [7.389, 0.368]
    >>> [round(w, 3) for w in advantage_weights([0.2, -0.1], 3)]
    [1.822, 0.741]
    >>> [round(w, 3) for w in advantage_weights([0.2, -0.1], 10, weight_clip=2.0, normalise=True)]
    [1.689, 0.311]
    """
    highest = _LARGEST if weight_clip is None else math.log(weight_clip)
    weights = [math.exp(min(beta * a, highest)) for a in advantages]
    if weight_clip is None and max(advantages, default=0.0) * beta > _LARGEST:
        raise ConfigError(
            f"a response has the advantage {max(advantages):.3g}, whose weight at beta {beta:g} is "
            "beyond all numbers. Set weight_clip, or a smaller beta."
        )
    if normalise and weights:
        mean = math.fsum(weights) / len(weights)
        weights = [w / mean for w in weights]
    return weights
