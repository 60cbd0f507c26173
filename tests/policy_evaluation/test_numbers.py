"""Figures read from the text beside hidden states: what is read, where it stands, how it weighs."""

from __future__ import annotations

from math import log1p
from typing import Any

import pytest
import torch

from iterpo.domain import Message, Response, State, decisions
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.features import features
from iterpo.policy_evaluation.numbers import SPREAD, columns, numbers
from iterpo.policy_evaluation.qfunction import ValueHead


def state(*messages: tuple[str, str]) -> State:
    return State("c", "k", 1, tuple(Message(role, text) for role, text in messages))


TALK = state(
    ("system", "Sell at 1,895 or 20.5%"),
    ("assistant", "1800?"),
    ("user", "Rather 1400"),
    ("assistant", "Room 3 is nice, 1700!"),
    ("user", "[note 9]\n1500 or 1450"),
)


def test_a_row_as_worked_by_hand() -> None:
    (row,) = numbers([TALK], [Response("No 7: take 1600 or 1650")], 2).tolist()
    first, said, theirs, own = row[:8], row[8:11], row[11:14], row[14:17]
    assert first == pytest.approx([log1p(1895), log1p(20.5), 0, 0, 0, 0, 0, 0])
    assert said == pytest.approx([log1p(1600), log1p(1650), 1.0]), "the last two, of three"
    assert theirs == pytest.approx([log1p(1500), log1p(1450), 1.0])
    assert own == pytest.approx([log1p(3), log1p(1700), 1.0])
    assert row[17:] == [0.0]
    assert len(row) == columns(2) == 18


def test_taking_the_others_figures_shows_and_saying_none_does_not_count_as_that() -> None:
    said = [Response("1500 or 1450, fine"), Response("Fine"), Response("1450")]
    found = numbers([TALK] * 3, said, 2)
    assert found[:, -1].tolist() == [1.0, 0.0, 0.0]
    assert found[2, 8:11].tolist() == pytest.approx([0.0, log1p(1450), 0.5]), "from the right"
    silent = state(("system", "Say hello."), ("user", "Hello?"))
    assert numbers([silent], [Response("Hi")], 2).tolist() == [[0.0] * 18]


@pytest.mark.parametrize("text", ["9" * 100_000, "1,000" * 40_000, "1." * 100_000, "۱۲۳ ½ ∞ 1e999"])
def test_monsters_are_read_as_finite_numbers(text: str) -> None:
    found = numbers([state(("system", text))], [Response(text)], 8)
    assert bool(torch.isfinite(found).all())
    assert float(found.max()) < 1.001 * log1p(1e12)


def test_none_are_read_on_request_and_no_rows_are_no_rows() -> None:
    assert numbers([TALK], [Response("7")], 0).shape == (1, 0)
    assert numbers([], [], 8).shape == (0, columns(8))
    assert columns(0) == 0


def test_they_stand_behind_the_hidden_states(backbone: Any, talk: Any) -> None:
    rows = [d for c in (talk(0, 3), talk(1, 2)) for d in decisions(c, 0.9)]
    asked = ([d.state for d in rows], [d.response for d in rows])
    plain, both = features(backbone, *asked), features(backbone, *asked, numbers=3)
    assert torch.equal(both[:, : plain.shape[1]], plain)
    assert torch.equal(both[:, plain.shape[1] :], numbers(*asked, 3))


def test_standardised_they_spread_wider_than_hidden_states() -> None:
    width = 5 + columns(1)
    rows = torch.randn(200, width, generator=torch.Generator().manual_seed(0))
    head = ValueHead(width, 4, 2, 0.0)
    head.set_scales(rows, torch.randn(200), QConfig(numbers=1, hidden=4, heads=2))
    spread = ((rows - head.feature_mean) / head.feature_scale).std(dim=0, correction=0)
    assert spread.tolist() == pytest.approx([1.0] * 5 + [SPREAD] * columns(1), rel=1e-4)
    with pytest.raises(ValueError, match="5 features can't end with"):
        head.set_scales(rows[:, :5], torch.randn(200), QConfig(numbers=1))
