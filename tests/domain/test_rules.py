"""Rules of settings: what an interval accepts, and how it is told."""

from __future__ import annotations

import math
from typing import Any

import pytest

from iterpo.domain.rules import one_of, within
from iterpo.errors import ConfigError
from iterpo.methods.mt_kto import MtKtoOptions
from iterpo.policy_improvement.logged import LoggedConfig


@pytest.mark.parametrize(
    ("span", "inside", "outside", "words"),
    [
        ("[0, 1]", (0, 0.5, 1), (-1e-9, 1.1), "0 to 1"),
        ("(0, 1]", (1e-9, 1), (0, 1.1), "above 0, at most 1"),
        ("[0, 1)", (0, 0.9), (-1, 1), "0 or more, below 1"),
        ("(0.5, 1)", (0.75,), (0.5, 1), "above 0.5, below 1"),
        ("[1, inf)", (1, 10**30), (0,), "1 or more"),
        ("(0, inf)", (1e-300,), (0, -1), "above 0"),
    ],
)
def test_intervals_hold_what_they_say(
    span: str, inside: tuple[float, ...], outside: tuple[float, ...], words: str
) -> None:
    holds, told = within(span)
    assert told == words
    assert all(map(holds, inside))
    assert not any(map(holds, (*outside, math.inf, -math.inf, math.nan, None)))


def test_null_and_zero_are_explained_where_they_mean_something() -> None:
    assert within("[0, 1]", null="")[1] == "0 to 1, or null"
    assert within("[0, 1]", null="")[0](None)
    assert within("[0, inf)", zero="off", null="never")[1] == "0 (off) or more, or null (never)"
    with pytest.raises(ValueError, match="no interval"):
        within("0..1")


def test_one_of_a_few() -> None:
    holds, told = one_of(("a", None))
    assert (holds("a"), holds(None), holds("b"), told) == (True, True, False, "a, None")


@pytest.mark.parametrize(
    "make", [lambda x: LoggedConfig(learning_rate=x), lambda x: MtKtoOptions(beta=x)]
)
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_no_number_is_refused_in_code_as_in_a_plan(make: Any, value: float) -> None:
    with pytest.raises(ConfigError, match="accepted: above 0"):
        make(value)


def test_what_is_made_of_the_fields_is_refused_with_the_rest() -> None:
    with pytest.raises(ConfigError) as caught:
        MtKtoOptions(beta=-1.0, learning_rate=-1.0, batch_size=0, epochs=0)
    told = [line.partition(":")[0] for line in str(caught.value).splitlines()]
    assert told == ["beta", "batch_size", "learning_rate", "epochs"], "each once"
