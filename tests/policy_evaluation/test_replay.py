"""The replay buffer: what a transition is, what leaves the buffer, and what a round learns from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from iterpo.domain import Conversation, DiscountUnit, Ending, Outcome, decisions
from iterpo.errors import BatchError
from iterpo.policy_evaluation.replay import replay
from iterpo.policy_evaluation.transitions import Transition, transitions

Talk = Callable[..., Conversation]


def drawn(
    conversations: list[Conversation], capacity: int = 10_000, seed: int = 0
) -> tuple[Transition, ...]:
    return replay(conversations, 0.9, "agent_turn", capacity=capacity, seed=seed)


def names(rows: tuple[Transition, ...]) -> list[tuple[str, int]]:
    return [(row.state.conversation_id, row.state.t) for row in rows]


@pytest.mark.parametrize("unit", ["agent_turn", "message"])
def test_backing_up_rewards_gives_the_returns(talk: Talk, unit: DiscountUnit) -> None:
    conversation = talk(1, n_actions=4, reward=0.7)
    rows = transitions(conversation, 0.9, unit)
    ahead, returns = 0.0, []
    for row in reversed(rows):
        ahead = row.reward + (0.0 if row.following is None else row.discount * ahead)
        returns.append(ahead)
    wanted = [d.ret for d in decisions(conversation, 0.9, unit)]
    assert returns[::-1] == pytest.approx(wanted)
    assert [row.following and row.following.state for row in rows] == [
        *(row.state for row in rows[1:]),
        None,
    ]


def test_a_failed_conversation_has_none(talk: Talk) -> None:
    failed = replace(talk(1), outcome=Outcome(Ending.INFRASTRUCTURE_FAILURE))
    assert transitions(failed, 0.9) == ()


def test_explored_turns_are_marked(talk: Talk) -> None:
    plain = talk(1)
    turns = [replace(t, off_policy=i == 2) for i, t in enumerate(plain.turns)]
    rows = transitions(replace(plain, turns=tuple(turns)), 0.9)
    assert [row.explored for row in rows] == [True, False, False]


def test_the_first_round_learns_from_all_of_its_own(talk: Talk) -> None:
    log = [talk(i, reward=i / 10) for i in range(4)]
    rows = drawn(log)
    assert names(rows) == [(c.id, t) for c in log for t in (1, 2, 3)]


def test_later_rounds_learn_from_as_much_drawn_from_all(talk: Talk) -> None:
    old = [replace(talk(i, n_actions=4, reward=i / 10), round=0) for i in range(10)]
    new = [replace(talk(100 + i, reward=i / 10), round=1) for i in range(10)]
    seen: Counter[str] = Counter()
    for seed in range(20):
        rows = names(drawn([*new, *old], seed=seed))
        assert len(rows) == len(set(rows)) == 30, "as many as round 1 logged, none twice"
        seen.update(name for name, _ in rows)
    own = sum(n for name, n in seen.items() if int(name[1:]) >= 100)
    # 30 of 70 are the new round's own; 2 SE of draws with repetition would be 24.
    assert own == pytest.approx(20 * 30 * 30 / 70, abs=24)
    assert drawn([*new, *old], seed=5) == drawn([*new, *old], seed=5)
    assert drawn([*new, *old], seed=5) != drawn([*new, *old], seed=6)


def test_the_oldest_leave_a_full_buffer_first(talk: Talk) -> None:
    old = [replace(talk(i, reward=i / 10), round=0) for i in range(10)]
    new = [replace(talk(100 + i, reward=i / 10), round=1) for i in range(4)]
    rows = names(drawn([*old, *new], capacity=12))
    assert rows == [(c.id, t) for c in new for t in (1, 2, 3)]
    fewer = names(drawn([*old, *new], capacity=5))
    assert fewer == [(new[2].id, 2), (new[2].id, 3), *((new[3].id, t) for t in (1, 2, 3))]
    more = {name for seed in range(20) for name, _ in names(drawn([*old, *new], 15, seed))}
    assert more == {old[-1].id, *(c.id for c in new)}


def test_nothing_to_learn_is_an_error(talk: Talk) -> None:
    with pytest.raises(BatchError, match="no agent action"):
        drawn([talk(1, n_actions=0)])
    with pytest.raises(BatchError, match=r"all 6 transitions .* the reward 0"):
        drawn([talk(i, reward=0.0) for i in range(2)])
