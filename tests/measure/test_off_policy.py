"""Off-policy values against exact ones on a game of two turns, and twins that must miss them."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from iterpo.domain import Conversation, Ending, Exploration, Outcome, Role, Sampled, Sampling, Turn
from iterpo.errors import BatchError
from iterpo.measure.off_policy import (
    Reweighed,
    first_order_gain,
    logged_log_probs,
    reweighed,
    value_gain,
)

# The game: action 1 in turn 1 goes on (reward 0.1 at once), action 0 ends it with 0.4. Then the
# partner says x or y with probability 1/2, and action 1 is worth 1 after x and 0 after y; action 0
# is worth 0.5 after either. The old policy tosses a coin in every state.
NEW = {"start": 0.75, "x": 0.9, "y": 0.2}
"""Probability of action 1 under the new policy."""
LAST = {("x", 1): 1.0, ("y", 1): 0.0, ("x", 0): 0.5, ("y", 0): 0.5}

J_OLD = 0.5 * 0.4 + 0.5 * (0.1 + 0.25 * (1.0 + 0.0 + 0.5 + 0.5))
J_NEW = 0.25 * 0.4 + 0.75 * (0.1 + 0.5 * (0.9 * 1.0 + 0.1 * 0.5) + 0.5 * (0.2 * 0.0 + 0.8 * 0.5))


def ratio(state: str, action: int) -> float:
    p = NEW[state] if action else 1 - NEW[state]
    return math.log(p / 0.5)


def short(kernel: str = "k") -> Reweighed:
    return Reweighed(kernel, (ratio("start", 0),), (0.4,))


def long(reply: str, action: int, kernel: str = "k") -> Reweighed:
    ratios = (ratio("start", 1), ratio(reply, action))
    return Reweighed(kernel, ratios, (0.1, LAST[reply, action]))


def in_proportion(kernel: str = "k") -> list[Reweighed]:
    """Every conversation as often as the old policy has it: 1/2, and 1/8 each."""
    return [short(kernel)] * 4 + [long(s, a, kernel) for s in "xy" for a in (0, 1)]


def drawn(rng: random.Random, kernel: str) -> Reweighed:
    if rng.random() < 0.5:
        return short(kernel)
    return long(rng.choice("xy"), rng.randrange(2), kernel)


def test_the_value_of_the_new_policy_is_exact_on_the_old_ones_own_distribution() -> None:
    assert abs(J_OLD - 0.5) < 1e-12
    assert abs(J_NEW - 0.68125) < 1e-12
    found = value_gain([c for k in "abc" for c in in_proportion(k)])
    assert found.gain.mean == pytest.approx(J_NEW - J_OLD, abs=1e-12)
    assert (found.n, found.gain.n, found.gain.clusters) == (24, 24, 3)


def test_twins_with_the_ratio_upside_down_or_without_what_has_ended_miss_it() -> None:
    logged = in_proportion()
    upside_down = [replace(c, log_ratios=tuple(-x for x in c.log_ratios)) for c in logged]
    assert abs(value_gain(upside_down).gain.mean - (J_NEW - J_OLD)) > 0.1
    # Without ended conversations in the denominator, turn 2 would be divided by too little.
    first = sum(math.exp(c.log_ratios[0]) * c.rewards[0] for c in logged) / 8
    second = [c for c in logged if len(c.rewards) == 2]
    weights = [math.exp(sum(c.log_ratios)) for c in second]
    forgetful = sum(w * c.rewards[1] for w, c in zip(weights, second, strict=True)) / sum(weights)
    assert abs(first + forgetful - J_NEW) > 0.1


def test_the_first_order_gain_is_the_advantage_of_single_actions_by_enumeration() -> None:
    """Start: Q(1) = 0.1 + 0.5 = 0.6, Q(0) = 0.4; pi' adds 1/4 to action 1. Then 1/2 of the
    conversations go on, half of them to x (1/2 better by action 1, 0.4 more of it)."""
    start = 0.25 * (0.6 - 0.4)
    later = 0.5 * (0.5 * 0.4 * (1.0 - 0.5) + 0.5 * -0.3 * (0.0 - 0.5))
    found = first_order_gain([c for k in "ab" for c in in_proportion(k)])
    assert found.gain.mean == pytest.approx(start + later, abs=1e-12)
    assert found.n == 24, "actions, not conversations"
    # It is the slope of J: a policy that moved a hundredth of the way gains a hundredth of it.
    p = {s: 0.5 + 0.01 * (q - 0.5) for s, q in NEW.items()}
    near = (1 - p["start"]) * 0.4 + p["start"] * (
        0.1 + 0.5 * (p["x"] + (1 - p["x"]) * 0.5) + 0.5 * (1 - p["y"]) * 0.5
    )
    assert near - J_OLD == pytest.approx(0.01 * found.gain.mean, rel=0.01)


def test_the_effective_sample_size_by_hand() -> None:
    """Weights 1, 1, 2: 4^2 / 6."""
    logged = [Reweighed(k, (math.log(w),), (0.0,)) for k, w in zip("abc", (1, 1, 2), strict=True)]
    assert value_gain(logged).ess == pytest.approx(16 / 6)
    assert first_order_gain(logged).ess == pytest.approx(16 / 6)
    # Two actions whose ratios cancel: the conversation weighs 1, but no single action does.
    back = [Reweighed(k, (math.log(2), -math.log(2)), (0.0, 1.0)) for k in "ab"]
    assert value_gain(back).ess == pytest.approx(2)
    assert first_order_gain(back).ess == pytest.approx(5**2 / (2 * 4 + 2 / 4))


def test_the_bound_holds_as_often_as_it_says_and_a_twin_without_weights_does_not() -> None:
    rng = random.Random(5)
    held = twin = first = 0
    true_first = first_order_gain(in_proportion()).gain.mean
    for i in range(100):
        logged = [drawn(rng, f"k{k}") for k in range(40) for _ in range(3)]
        found = value_gain(logged, seed=i).gain
        held += found.low <= J_NEW - J_OLD <= found.high
        found = first_order_gain(logged).gain
        first += found.low <= true_first <= found.high
        found = value_gain([replace(c, log_ratios=(0.0,) * len(c.rewards)) for c in logged]).gain
        twin += found.low <= J_NEW - J_OLD <= found.high
    assert 90 <= held <= 99, "95, give or take 2"
    assert 90 <= first <= 99
    assert twin == 0


def test_copies_of_a_conversation_tell_nothing_new_and_one_kernel_nothing_at_all() -> None:
    rng = random.Random(1)
    logged = [drawn(rng, f"k{k}") for k in range(30)]
    once, twice = value_gain(logged), value_gain(logged * 2)
    assert once.gain.low == pytest.approx(twice.gain.low)
    assert once.gain.high == pytest.approx(twice.gain.high)
    alone = value_gain(in_proportion()).gain
    assert (alone.low, alone.high) == (-math.inf, math.inf)
    assert value_gain(in_proportion()).to_dict()["low"] is None


def test_equal_seeds_give_equal_bounds_and_extreme_ratios_no_nan() -> None:
    rng = random.Random(2)
    logged = [drawn(rng, f"k{k}") for k in range(20)]
    assert value_gain(logged, seed=3) == value_gain(logged, seed=3)
    assert value_gain(logged, seed=3) != value_gain(logged, seed=4)
    far = [replace(c, log_ratios=tuple(900.0 * x for x in c.log_ratios)) for c in logged]
    found = value_gain(far)
    assert all(map(math.isfinite, (found.gain.mean, found.gain.low, found.gain.high)))
    assert found.ess < 10
    with pytest.raises(BatchError, match="nothing in common"):
        first_order_gain([replace(logged[0], log_ratios=(900.0,) * len(logged[0].rewards))])


@pytest.mark.parametrize(
    ("logged", "told"),
    [
        pytest.param([], "no conversation", id="none"),
        pytest.param([Reweighed("k", (0.0,), (0.0, 1.0))], "1 ratios and 2 rewards", id="lengths"),
        pytest.param([Reweighed("k", (math.nan,), (0.0,))], "isn't finite", id="nan"),
    ],
)
def test_what_cannot_be_weighed_is_refused(logged: list[Reweighed], told: str) -> None:
    for estimate in (value_gain, first_order_gain):
        with pytest.raises(BatchError, match=told):
            estimate(logged)  # type: ignore[operator]


def spoken(text: str, *logprobs: float, mode: str = "processed", **settings: float) -> Turn:
    sampling = Sampling(**settings)  # type: ignore[arg-type]
    ids = tuple(range(len(logprobs)))
    sampled = Sampled(ids, logprobs, sampling, "", 0, "pi", "stop", logprobs_mode=mode)
    return Turn(Role.AGENT, text, sampled=sampled)


def talk(*said: Turn, **changes: object) -> Conversation:
    turns = [Turn(Role.AGENT, "hi", scripted=True)]
    for turn in said:
        turns += [Turn(Role.PARTNER, "well?"), turn]
    outcome = Outcome(Ending.AGREED, 0.8, closing_message=len(turns) - 1)
    found = Conversation("c", "k", "toy", tuple(turns), outcome, "play")
    return replace(found, **changes)  # type: ignore[arg-type]


def test_a_conversation_is_weighed_by_its_stored_log_probs() -> None:
    found = reweighed(
        talk(spoken("a", -1.0, -0.5), spoken("b", -2.0)), (-1.0, -3.0), 0.9, "agent_turn"
    )
    assert found.log_ratios == (0.5, -1.0)
    assert found.rewards == (0.0, pytest.approx(0.9 * 0.8))
    per_message = reweighed(talk(spoken("a", -1.0)), (-1.0,), 0.9, "message")
    assert per_message.ret == pytest.approx(0.9**2 * 0.8), "opening, partner, agent closes"


@pytest.mark.parametrize(
    ("conversation", "told"),
    [
        pytest.param(talk(Turn(Role.AGENT, "a")), "no token ids", id="text only (pain 62)"),
        pytest.param(talk(spoken("a", -1.0, top_p=0.9)), "nucleus", id="nucleus"),
        pytest.param(talk(spoken("a", -1.0, top_k=5)), "nucleus", id="top-k"),
        pytest.param(talk(spoken("a", -1.0, repetition_penalty=1.1)), "penalised", id="penalty"),
        pytest.param(talk(spoken("a", 0.0, temperature=0.0)), "greedy", id="greedy"),
        pytest.param(
            talk(spoken("a", -1.0, temperature=0.7, mode="raw")), "before the temp", id="raw"
        ),
        pytest.param(
            talk(spoken("a", -1.0), spoken("b", -1.0, temperature=0.7)), "differently", id="mixed"
        ),
        pytest.param(
            talk(spoken("a", -1.0), exploration=Exploration({"tone": "warm"}, 0.5)),
            "explored",
            id="explored",
        ),
        pytest.param(talk(), "no agent action", id="no action"),
    ],
)
def test_pain_62_logs_that_carry_no_ratio_are_refused(
    conversation: Conversation, told: str
) -> None:
    with pytest.raises(BatchError, match=told):
        logged_log_probs(conversation)


def test_neutral_settings_may_differ_from_a_temperature_of_one() -> None:
    sampling, said = logged_log_probs(talk(spoken("a", -1.0, -0.5, temperature=0.7)))
    assert (sampling.temperature, said) == (0.7, (-1.5,))
    assert logged_log_probs(talk(spoken("a", -1.0, mode="raw")))[1] == (-1.0,)
