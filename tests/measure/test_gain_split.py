"""A gain in three parts: worked by hand, summing exactly, and each part alone where it is alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iterpo.domain import Ending
from iterpo.measure import measure
from iterpo.measure.gain_split import Worth, split_gain, worth
from measure.test_returns import talk


def test_a_gain_with_all_three_causes_worked_by_hand():
    """J 0.5 x 0.9 x 0.6 = 0.27 becomes 0.8 x 1 x 0.7 = 0.56.

    Agreement: 0.3 (2 x 0.54 + 0.63 + 0.6 + 2 x 0.7) / 6 = 0.1855; deal: 0.1 (0.9 + 0.5 + 0.72 +
    1.6) / 6 = 0.062; length: 0.1 (0.6 + 0.35 + 0.48 + 1.12) / 6 = 0.0425.
    """
    found = split_gain(Worth(0.8, 1.0, 0.7, 0.0), Worth(0.5, 0.9, 0.6, 0.0))
    assert found.agreement == pytest.approx(0.1855)
    assert found.deal == pytest.approx(0.062)
    assert found.length == pytest.approx(0.0425)
    assert found.total == pytest.approx(0.29)


def test_the_worth_of_a_log_worked_by_hand():
    """Deals of 1 at tau 1 and 0.5 at tau 3 (gamma 0.9), and one without: J = (1 + 0.405) / 3."""
    talks = [talk(4, 1.0), talk(8, 0.5), talk(4, 0.0)]
    found = worth(talks, 0.9)
    assert found.agreement == pytest.approx(2 / 3)
    assert found.discount == pytest.approx((1 + 0.81) / 2)
    assert found.deal == pytest.approx(1.405 / 1.81)
    assert found.no_deal == 0
    assert found.j == pytest.approx(1.405 / 3) == measure(talks, 0.9).J_agent_turn.mean
    by_message = worth(talks, 0.9, "message")
    assert by_message.j == pytest.approx(measure(talks, 0.9).J_message.mean)
    assert by_message.discount == pytest.approx((0.9**3 + 0.9**7) / 2)


@pytest.mark.parametrize(
    ("new", "cause"),
    [
        ([talk(4, 1.0), talk(4, 1.0)], "agreement"),
        ([talk(4, 1.5), talk(4, 0.0)], "deal"),
        ([talk(6, 1.0), talk(4, 0.0)], "length"),
    ],
)
def test_what_changed_alone_gets_all(new, cause):
    old = [talk(4, 1.0), talk(4, 0.0)]
    parts = split_gain(worth(new, 0.9), worth(old, 0.9)).to_dict()
    assert parts[cause] == pytest.approx(parts["total"], abs=1e-15) != 0
    assert parts["total"] == pytest.approx(worth(new, 0.9).j - worth(old, 0.9).j)


def test_deals_of_a_policy_that_never_agreed_are_taken_to_be_the_others():
    parts = split_gain(worth([talk(6, 1.0)], 0.9), worth([talk(4, 0.0)], 0.9))
    assert parts.agreement == pytest.approx(0.9)
    assert (parts.deal, parts.length) == (0, 0)
    nothing = worth([talk(4, 0.0)], 0.9)
    assert (nothing.discount, nothing.deal) == (None, None)
    assert split_gain(nothing, nothing).total == 0


def test_what_is_earned_without_a_deal_counts_with_the_deals():
    walked = [talk(4, 0.3, ending=Ending.REFUSED), talk(4, 1.0)]
    parts = split_gain(worth(walked, 0.9), worth([talk(4, 0.0), talk(4, 1.0)], 0.9))
    assert parts.deal == pytest.approx(0.15)
    assert (parts.agreement, parts.length) == (0, 0)


SHARE = st.floats(0, 1)
REWARD = st.floats(-2, 2)
SOME = st.none() | REWARD
WORTHS = st.builds(Worth, SHARE, st.none() | SHARE, SOME, SOME)


@given(WORTHS, WORTHS)
def test_the_parts_sum_to_the_gain_and_turn_around_with_it(new, old):
    forth, back = split_gain(new, old), split_gain(old, new)
    assert forth.deal == pytest.approx(-back.deal, abs=1e-12)
    assert forth.total == pytest.approx(-back.total, abs=1e-12)
    if None not in (new.discount, new.deal, new.no_deal, old.discount, old.deal, old.no_deal):
        assert forth.total == pytest.approx(new.j - old.j, abs=1e-12)
