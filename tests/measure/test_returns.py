"""measure: the worked conversations of the specification, and what is left out."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from iterpo.domain import Conversation, Ending, Exploration, Outcome, Role, Turn
from iterpo.errors import BatchError
from iterpo.measure.compare import compare
from iterpo.measure.returns import measure, result_record


def talk(n_messages: int, reward: float | None, kernel: str = "k", **outcome) -> Conversation:
    turns = tuple(
        Turn(Role.AGENT if i % 2 == 0 else Role.PARTNER, f"m{i}", scripted=i == 0)
        for i in range(n_messages)
    )
    ending = outcome.pop("ending", Ending.AGREED if reward else Ending.REFUSED)
    result = Outcome(ending, reward, closing_message=n_messages - 1, **outcome)
    return Conversation(f"{kernel}-{n_messages}", kernel, "toy", turns, result, "")


@pytest.mark.parametrize(
    ("n_messages", "reward", "agent_turn", "message"),
    [
        (4, 1.6, 1.6, 1.1664),  # agent proposes at 2, partner accepts at 3
        (3, 1.0, 1.0, 0.81),  # agent accepts at 2
        (8, 1.0, 0.81, 0.4783),  # tau = 3
        (11, 1.0, 0.6561, 0.3487),  # tau = 5
        (2, 0.0, 0.0, 0.0),  # the partner refuses at once: tau = 0
    ],
)
def test_worked_returns_in_both_units(n_messages, reward, agent_turn, message):
    record = result_record(talk(n_messages, reward), 0.9)
    assert record.return_agent_turn == pytest.approx(agent_turn, abs=5e-5)
    assert record.return_message == pytest.approx(message, abs=5e-5)
    assert record.n_messages == n_messages
    assert record.closing_message == n_messages - 1
    assert record.n_agent_actions == (n_messages - 1) // 2


def test_a_record_holds_what_the_specification_lists():
    record = result_record(talk(4, 1.0, terms={"price": 32}, closed_by="accept", flags=("x",)), 0.9)
    assert record.to_dict() == {
        "conversation_id": "k-4",
        "kernel_id": "k",
        "outcome": "deal",
        "terms": {"price": 32},
        "closed_by": "accept",
        "closing_message": 3,
        "n_messages": 4,
        "n_agent_actions": 1,
        "reward": 1.0,
        "return_agent_turn": 1.0,
        "return_message": pytest.approx(0.729),
        "flags": ["x"],
    }


@pytest.mark.parametrize(
    ("ending", "reward", "name"),
    [
        (Ending.REFUSED, 0.0, "no_deal"),
        (Ending.TURN_LIMIT, 0.0, "limit"),
        (Ending.INFRASTRUCTURE_FAILURE, None, "infrastructure_failure"),
    ],
)
def test_outcome_names(ending, reward, name):
    record = result_record(talk(5, reward, ending=ending), 0.9)
    assert record.outcome == name
    assert record.return_message == record.reward == reward


def test_a_set_of_conversations():
    failed = talk(5, None, "b", ending=Ending.INFRASTRUCTURE_FAILURE)
    found = measure([talk(4, 1.6, "a"), talk(8, 1.0, "b"), talk(2, 0.0, "c"), failed], 0.9)
    assert (found.conversations, found.n_scored, found.left_out, found.n_kernels) == (4, 3, 1, 3)
    assert found.endings == {"agreed": 2, "infrastructure_failure": 1, "refused": 1}
    assert found.J_agent_turn.mean == pytest.approx((1.6 + 0.81 + 0.0) / 3)
    assert found.J_message.mean == pytest.approx((1.1664 + 0.9**7) / 3)
    assert found.agreement.mean == pytest.approx(2 / 3)
    assert found.reward.mean == pytest.approx(2.6 / 3)
    assert found.reward_given_agreement.mean == pytest.approx(1.3)
    assert found.messages.mean == pytest.approx(14 / 3)
    assert found.turns.mean == pytest.approx(4 / 3)
    assert found.j_star_message is None
    assert found.regret_agent_turn is None
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_failure_is_not_a_zero():
    good = [talk(4, 1.0, k) for k in "abc"]
    lost = talk(1, None, "d", ending=Ending.INFRASTRUCTURE_FAILURE)
    assert measure([*good, lost], 0.9).J_agent_turn.mean == 1.0


def test_regret_is_the_distance_to_the_best_where_it_is_known():
    known = [
        dataclasses.replace(talk(4, r, k), j_star={"agent_turn": 1.5, "message": 1.0})
        for k, r in (("a", 1.0), ("b", 1.5))
    ]
    found = measure([*known, talk(4, 0.2, "c")], 0.9)
    assert found.j_star_agent_turn.mean == 1.5
    assert found.regret_agent_turn.mean == pytest.approx(0.25)
    assert found.regret_agent_turn.n == 2
    assert found.regret_message.mean == pytest.approx(1.0 - 1.25 * 0.729)


def test_pain_75_copies_of_a_batch_leave_the_standard_errors_unchanged():
    talks = [talk(4 + 2 * (i % 3), (0.0, 1.0, 1.4)[i % 3], f"k{i // 2}") for i in range(20)]
    once, twice = measure(talks, 0.9), measure(talks * 2, 0.9)
    for name in ("J_agent_turn", "J_message", "agreement", "reward", "messages"):
        a, b = getattr(once, name), getattr(twice, name)
        assert (a.mean, a.se, a.low, a.high) == pytest.approx((b.mean, b.se, b.low, b.high))


@pytest.mark.parametrize(
    ("talks", "text"),
    [
        ([], "none was given"),
        ([talk(3, None, ending=Ending.ABANDONED)], "1 abandoned"),
        ([talk(3, None, ending=Ending.AGREED)], "reward is None"),
    ],
)
def test_nothing_to_measure_is_an_error(talks, text):
    with pytest.raises(BatchError, match=text):
        measure(talks, 0.9)


def test_comparison_is_paired_by_kernel():
    old = [talk(4, 0.2 + 0.1 * i, f"k{i}") for i in range(9)]
    new = [talk(4, 0.3 + 0.1 * i, f"k{i}") for i in range(1, 10)]
    found = compare(new, old, 0.9)
    assert (found.n_kernels, found.unpaired_kernels) == (8, 2)
    assert found.J_agent_turn.mean == pytest.approx(0.1)
    assert found.J_agent_turn.se < 1e-9
    assert found.agreement.mean == 0.0
    json.dumps(found.to_dict(), allow_nan=False)
    with pytest.raises(BatchError, match="share no kernel"):
        compare(new[:1], old[:1] and [talk(4, 1.0, "other")], 0.9)


def test_it_imports_neither_torch_nor_models():
    code = (
        "import sys, iterpo.measure.returns, iterpo.measure.compare; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'iterpo.models')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_j_star_of_another_gamma_gives_no_regret():
    best = {"agent_turn": 1.5, "message": 1.0, "gamma": 0.9}
    talks = [dataclasses.replace(talk(4, 1.0, k), j_star=best) for k in "ab"]
    assert measure(talks, 0.9).regret_agent_turn is not None
    assert measure(talks, 0.5).regret_agent_turn is None
    assert measure(talks, 0.5).j_star_message is None


def explored(c: Conversation, **drawn) -> Conversation:
    return dataclasses.replace(c, exploration=Exploration({"tone": "warm"}, 0.1, **drawn))


def test_explored_conversations_are_counted_and_in_no_mean():
    own = [talk(4, 1.0, k, flags=("x",)) for k in "abc"]
    plain = [dataclasses.replace(c, exploration=Exploration({}, 0.9)) for c in own]
    lost = talk(5, None, "f", ending=Ending.INFRASTRUCTURE_FAILURE)
    strange = [
        explored(talk(6, 0.2, "a", flags=("y",))),
        explored(talk(2, 0.0, "d"), action=3),  # never reached, but drawn
    ]
    marked = talk(6, 0.2, "e")
    turns = (*marked.turns[:2], dataclasses.replace(marked.turns[2], off_policy=True))
    strange.append(dataclasses.replace(marked, turns=turns + marked.turns[3:]))
    found = measure([*plain, *strange, lost, explored(lost)], 0.9)
    assert (found.conversations, found.n_scored, found.explored, found.left_out) == (8, 3, 3, 2)
    assert sum(found.endings.values()) == 8
    alone = measure(own, 0.9).to_dict()
    counts = ("conversations", "left_out", "explored", "endings")
    assert {k: v for k, v in found.to_dict().items() if k not in counts} == {
        k: v for k, v in alone.items() if k not in counts
    }
    assert alone["explored"] == 0
    difference = compare([*own, *strange], own, 0.9)
    assert (difference.J_agent_turn.mean, difference.n_kernels) == (0.0, 3)


def test_a_batch_of_explored_conversations_says_nothing_about_j():
    with pytest.raises(BatchError, match=r"all 2 conversations .* explored.*a smaller share"):
        measure([explored(talk(4, 1.0, k)) for k in "ab"], 0.9)
