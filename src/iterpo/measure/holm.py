"""holm: p-values of several comparisons, adjusted so that any false alarm among them is rare."""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["holm"]


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values by Holm's step-down procedure; below 0.05, a difference is significant.

    The family-wise error rate is kept under any dependence between the comparisons. The smallest
    of m p-values is multiplied by m, the next by m - 1, …, none falls below one before it.

    Args:
        p_values: By name of the comparison; NaN stays NaN and counts as none.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    known = sorted((p, name) for name, p in p_values.items() if not math.isnan(p))
    adjusted: dict[str, float] = {}
    most = 0.0
    for i, (p, name) in enumerate(known):
        most = max(most, min(1.0, p * (len(known) - i)))
        adjusted[name] = most
    return {name: adjusted.get(name, math.nan) for name in p_values}
