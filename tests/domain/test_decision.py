"""The reduction, with numbers worked by hand."""

from __future__ import annotations

import pytest

from iterpo.domain import (
    Conversation,
    Ending,
    Outcome,
    Role,
    Turn,
    View,
    decisions,
    derive,
    discounted_return,
    discounts,
    returns_to_go,
)


def conversation(
    n_messages: int, reward: float | None, ending: Ending = Ending.AGREED
) -> Conversation:
    """``n_messages`` messages, the scripted opening included; partner speaks at odd indices."""
    turns = [Turn(Role.AGENT, "open", scripted=True)]
    for i in range(1, n_messages):
        turns.append(Turn(Role.PARTNER if i % 2 else Role.AGENT, f"m{i}"))
    outcome = Outcome(ending, reward, closing_message=n_messages - 1)
    return Conversation("c", "k", "toy", tuple(turns), outcome, system="s", reminder="[R]")


def test_worked_returns_of_three_turns() -> None:
    assert returns_to_go([0, 0, 1], 0.9) == pytest.approx((0.81, 0.9, 1.0))


def test_what_the_next_action_counts() -> None:
    c = conversation(7, 1.0)  # the agent acts at messages 2, 4 and 6
    assert discounts(c, 0.5) == (0.5, 0.5, 0.0)
    assert discounts(c, 0.5, "message") == (0.25, 0.25, 0.0)
    assert discounts(conversation(2, 1.0), 0.5) == ()


def test_returns_sum_rewards_of_all_later_turns() -> None:
    # 1 + .5*2 + .25*4 = 3; 2 + .5*4 = 4; 4
    assert returns_to_go([1, 2, 4], 0.5) == pytest.approx((3.0, 4.0, 4.0))


@pytest.mark.parametrize(
    ("n_messages", "reward", "agent_turn", "message"),
    [
        pytest.param(4, 1.6, 1.6, 0.9**3 * 1.6, id="agent proposes at 2, partner accepts at 3"),
        pytest.param(3, 1.0, 1.0, 0.81, id="agent accepts at 2"),
        pytest.param(8, 1.0, 0.81, 0.9**7, id="closing at message 7"),
        pytest.param(11, 1.0, 0.9**4, 0.9**10, id="closing at message 10"),
        pytest.param(2, 0.0, 0.0, 0.0, id="partner walks away at 1"),
    ],
)
def test_both_discount_units(
    n_messages: int, reward: float, agent_turn: float, message: float
) -> None:
    c = conversation(n_messages, reward)
    assert discounted_return(c, 0.9, "agent_turn") == pytest.approx(agent_turn)
    assert discounted_return(c, 0.9, "message") == pytest.approx(message)


def test_rows_of_a_deal_closed_by_the_partner() -> None:
    rows = decisions(conversation(8, 1.0), 0.9)
    assert [r.state.t for r in rows] == [1, 2, 3]
    assert [r.ret for r in rows] == pytest.approx([0.81, 0.9, 1.0])
    assert [r.response.text for r in rows] == ["m2", "m4", "m6"]


def test_message_units_count_the_partners_closing_message() -> None:
    rows = decisions(conversation(8, 1.0), 0.9, "message")
    assert [r.ret for r in rows] == pytest.approx([0.9**5, 0.9**3, 0.9])


def test_gamma_zero_rewards_the_last_action_only() -> None:
    assert [r.ret for r in decisions(conversation(8, 0.7), 0.0)] == [0.0, 0.0, 0.7]


def test_the_scripted_opening_is_no_action_and_tau_may_be_zero() -> None:
    assert decisions(conversation(2, 0.0, Ending.REFUSED), 0.9) == ()


@pytest.mark.parametrize(
    "ending", [Ending.INFRASTRUCTURE_FAILURE, Ending.ABANDONED, Ending.INVALID]
)
def test_pain_35_a_failure_has_no_rows_and_no_return(ending: Ending) -> None:
    broken = conversation(4, None, ending)
    assert decisions(broken, 0.9) == ()
    with pytest.raises(ValueError, match="no reward"):
        discounted_return(broken, 0.9, "agent_turn")


def test_state_is_what_was_rendered_reminder_before_the_latest_partner_message() -> None:
    first, second = decisions(conversation(6, 1.0), 0.9)
    assert [m.content for m in first.state.messages] == ["s", "open", "[R]\nm1"]
    assert [m.content for m in second.state.messages] == ["s", "open", "m1", "m2", "[R]\nm3"]
    assert [m.role for m in second.state.messages] == [
        "system", "assistant", "user", "assistant", "user",
    ]  # fmt: skip


def test_the_partner_sees_the_mirror_image() -> None:
    opening = Turn(Role.AGENT, "open", scripted=True)
    messages = View(Role.PARTNER, "p", (opening,), reminder="[P]").messages()
    assert [(m.role, m.content) for m in messages] == [("system", "p"), ("user", "[P]\nopen")]


def test_seeds_of_different_purposes_differ() -> None:
    seeds = {
        derive(s, r, k, c) for s in range(3) for r in range(3) for k in "abc" for c in range(3)
    }
    assert len(seeds) == 81
    assert all(0 <= s < 2**63 for s in seeds)
