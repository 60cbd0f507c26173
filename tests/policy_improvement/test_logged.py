"""What trainings on logged responses take: whose turns, in which order, with which weight."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from iterpo.domain import Conversation, Ending, Exploration, Outcome, Role, Turn
from iterpo.errors import BatchError, ConfigError, UnknownNameError
from iterpo.policy_improvement.logged import (
    LEARNERS,
    LoggedConfig,
    examples,
    learner,
    on_policy,
    schedule,
)
from iterpo.policy_improvement.weights import advantage_weights, class_weights

TURNS = (
    Turn(Role.AGENT, "hello", scripted=True),
    Turn(Role.PARTNER, "w1"),
    Turn(Role.AGENT, "w2"),
    Turn(Role.PARTNER, "w3"),
    Turn(Role.AGENT, "w4"),
)


def talk(name: str, ending: Ending = Ending.AGREED, reward: float | None = 0.5) -> Conversation:
    return Conversation(name, f"k{name}", "toy", TURNS, Outcome(ending, reward), "be brief")


def test_every_agent_action_is_an_example_labelled_by_how_its_conversation_ended() -> None:
    agreed, refused = examples(talk("a")), examples(talk("b", Ending.REFUSED, 0.0))
    assert [(e.state.t, e.response.text, e.agreed) for e in agreed] == [
        (1, "w2", True),
        (2, "w4", True),
    ]
    assert [e.agreed for e in refused] == [False, False]
    assert [m.content for m in agreed[1].state.messages] == ["be brief", "hello", "w1", "w2", "w3"]
    # A worthless agreement is one all the same: the label is the ending, not the reward.
    assert all(e.agreed for e in examples(talk("c", reward=0.0)))
    assert examples(talk("d", Ending.INFRASTRUCTURE_FAILURE, None)) == ()


def test_explored_conversations_are_refused_or_left_out_whole() -> None:
    marked = replace(talk("m"), turns=(*TURNS[:4], replace(TURNS[4], off_policy=True)))
    drawn = replace(talk("d"), exploration=Exploration({"tone": "warm"}, 0.5, action=7))
    lost = talk("l", Ending.ABANDONED, None)
    batch = [talk("a"), marked, drawn, lost]
    with pytest.raises(BatchError, match=r"2 of 3 conversations were explored.*off_policy to drop"):
        on_policy(batch)
    assert on_policy(batch, "drop") == (batch[0],)
    assert on_policy([talk("a"), lost]) == (batch[0],)


@pytest.mark.parametrize(("n", "size", "accumulation"), [(20, 1, 8), (20, 8, 1), (21, 2, 4)])
def test_every_example_comes_once_a_pass_and_every_step_is_full(
    n: int, size: int, accumulation: int
) -> None:
    plan = schedule(n, LoggedConfig(batch_size=size, gradient_accumulation=accumulation), seed=3)
    assert plan.steps == 3
    assert {len(set(step)) for step in plan.order} == {8}
    seen = Counter(plan.visits[:n])
    assert sorted(seen) == list(range(n))
    assert set(seen.values()) == {1}
    assert (plan.batch_size, plan.accumulation) == (size, accumulation)


def test_batch_and_accumulation_share_out_the_same_steps() -> None:
    one, all_ = (
        schedule(20, LoggedConfig(batch_size=b, gradient_accumulation=8 // b, epochs=2), seed=3)
        for b in (1, 8)
    )
    assert one.order == all_.order
    assert schedule(20, LoggedConfig(steps=7), seed=3).steps == 7
    assert schedule(20, LoggedConfig(), seed=4).order != schedule(20, LoggedConfig(), seed=3).order


def test_few_examples_still_fill_their_forward_passes() -> None:
    kto = LoggedConfig(batch_size=2, gradient_accumulation=4)
    sizes = {n: schedule(n, kto, seed=0) for n in (2, 3, 5, 7)}
    assert {n: (s.batch_size, s.accumulation, s.steps) for n, s in sizes.items()} == {
        2: (2, 1, 1),
        3: (2, 1, 2),
        5: (2, 2, 2),
        7: (2, 3, 2),
    }


def test_settings_out_of_range_are_named_together() -> None:
    with pytest.raises(ConfigError) as caught:
        LoggedConfig(learning_rate=0, batch_size=0, max_length=1)
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "learning_rate",
        "batch_size",
        "max_length",
    ]


def test_an_unknown_training_is_named_with_those_that_exist() -> None:
    with pytest.raises(UnknownNameError, match="'dpo'; choose one of awr, kto"):
        learner("dpo")
    assert {"awr", "kto", "sft"} <= set(LEARNERS)


def test_classes_weigh_alike_whatever_their_counts() -> None:
    desirable, undesirable = class_weights([True] * 30 + [False] * 10)
    assert (round(desirable, 3), undesirable) == (0.667, 2.0)
    assert desirable * 30 == pytest.approx(undesirable * 10)
    assert class_weights([False] * 4) == (0.0, 0.5)


def test_weights_by_advantage_are_those_worked_by_hand() -> None:
    a = [0.2, -0.1]
    assert [round(w, 3) for w in advantage_weights(a, 10)] == [7.389, 0.368]
    assert [round(w, 3) for w in advantage_weights(a, 3)] == [1.822, 0.741]
    assert advantage_weights(a, 0) == [1.0, 1.0]
    assert sum(advantage_weights(a, 10, normalise=True)) == pytest.approx(2)
    assert advantage_weights([50.0, 0.0], 10, weight_clip=20.0) == pytest.approx([20.0, 1.0])
    with pytest.raises(ConfigError, match=r"advantage 50.*Set weight_clip"):
        advantage_weights([50.0], 10)
