"""Holm's procedure against numbers worked by hand."""

from __future__ import annotations

import math

from iterpo.measure.holm import holm


def test_four_comparisons_worked_by_hand():
    """0.005 x 4, 0.011 x 3, 0.02 x 2 and 0.3 x 1, none below one before it."""
    found = holm({"d": 0.3, "a": 0.005, "c": 0.012, "b": 0.011})
    assert found == {"d": 0.3, "a": 0.02, "c": 0.033, "b": 0.033}
    assert list(found) == ["d", "a", "c", "b"]


def test_it_ends_at_one_and_leaves_out_what_is_unknown():
    found = holm({"a": 0.6, "b": math.nan, "c": 0.7})
    assert (found["a"], found["c"]) == (1.0, 1.0)
    assert math.isnan(found["b"])
    assert holm({"only": 0.04, "b": math.nan})["only"] == 0.04
    assert holm({}) == {}
