"""Shifts between two rounds, and agreement of coders, by numbers worked by hand."""

from __future__ import annotations

import math

import pytest

from iterpo.domain import Conversation, Ending, Outcome, Role, Turn
from iterpo.errors import BatchError
from iterpo.measure.shifts import Coded, cohens_kappa, shift


def coded(kernel: str, *messages: int, n: int = 2) -> Coded:
    """n actions of the agent; ``messages`` show the behaviour."""
    turns = [Turn(Role.AGENT, "Hi", scripted=True)]
    turns += [Turn(role, "x") for _ in range(n) for role in (Role.PARTNER, Role.AGENT)]
    c = Conversation("c", kernel, "toy", tuple(turns), Outcome(Ending.REFUSED, 0.0), "")
    return Coded(c, {"offer": tuple(messages)})


def test_rates_counts_and_their_paired_difference() -> None:
    before = [coded("a", 2, 4), coded("a"), coded("b"), coded("only-before", 2)]
    after = [coded("a", 2), coded("b", 4), coded("only-after")]
    found = shift("offer", before, after)
    assert found.before.mean == pytest.approx(1 / 3)  # unshared kernels are no part of it
    assert found.after.mean == 1.0
    # a: 1 - 1/2, b: 1 - 0; t(0.975, 1) = 12.706, se = 0.25
    assert found.difference.mean == pytest.approx(0.75)
    assert found.difference.se == pytest.approx(0.25)
    # 0.75 -+ 12.706 * 0.25 reaches from -2.43 to 3.93, where no difference of shares can be
    assert (found.difference.low, found.difference.high) == (-1.0, 1.0)
    assert (found.count_before.mean, found.count_after.mean) == (pytest.approx(2 / 3), 1.0)
    assert (found.per_turn_before, found.per_turn_after) == (pytest.approx(2 / 6), 2 / 4)


def test_no_interval_leaves_what_is_possible() -> None:
    """Also in between: t(0.975, 3) = 3.182."""
    before = [coded(k, *m) for k, m in zip("abcd", [(2,), (2,), (2,), ()], strict=True)]
    after = [coded(k, *m) for k, m in zip("abcd", [(), (), (), ()], strict=True)]
    found = shift("offer", before, after)
    assert found.difference.mean == -0.75
    assert found.difference.low == -1.0  # -0.75 - 3.182 * 0.25 = -1.55
    assert found.difference.high == pytest.approx(-0.75 + 3.182 * 0.25, abs=1e-3)
    assert found.count_before.low == 0.0  # 0.75 - 0.80
    assert found.count_before.high == pytest.approx(0.75 + 3.182 * 0.25, abs=1e-3)


def test_kernels_may_be_renamed() -> None:
    sides = [[coded("a", 2), coded("b")], [coded("a"), coded("b", 2, 4), coded("b")]]
    other = {"a": "zz", "b": "aa"}
    renamed = [
        [coded(other[c.conversation.kernel_id], *c.codes["offer"]) for c in s] for s in sides
    ]
    first, second = (shift("offer", *s).to_dict() for s in (sides, renamed))
    assert first == second


def test_never_shown_on_either_side_is_no_certainty() -> None:
    side = [coded(str(k)) for k in range(20)]
    found = shift("offer", side, side).difference
    assert found.mean == 0
    # Wilson's interval for 0 of 20 ends at 0.161
    assert (found.low, found.high) == (
        pytest.approx(-0.161, abs=5e-4),
        pytest.approx(0.161, abs=5e-4),
    )


def test_a_single_kernel_shows_no_spread() -> None:
    found = shift("offer", [coded("a")], [coded("a", 2)]).difference
    assert math.isinf(found.low)


def test_no_turns_no_rate_per_turn() -> None:
    assert shift("offer", [coded("a", n=0)], [coded("a", n=0)]).per_turn_before is None


def test_rounds_without_a_shared_kernel_are_refused() -> None:
    with pytest.raises(BatchError, match="share no kernel"):
        shift("offer", [coded("a")], [coded("b")])


def test_kappa_of_a_worked_table() -> None:
    # 20 both, 5 the first alone, 10 the second alone, 15 neither: (0.7 - 0.5) / (1 - 0.5)
    first = [True] * 25 + [False] * 25
    second = [True] * 20 + [False] * 5 + [True] * 10 + [False] * 15
    assert cohens_kappa(first, second) == pytest.approx(0.4)
    assert cohens_kappa(first, first) == 1.0
    assert cohens_kappa([True, False], [False, True]) == -1.0
    assert cohens_kappa([False] * 9, [False] * 9) is None  # chance alone would do as well
    assert cohens_kappa([], []) is None
