"""Calculations and private numbers in plain words, and what only looks like them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iterpo.measure.plain_words import Private, calculates, reveals, words

BOOKS = Private(r"books?", frozenset({"2"}))
HATS = Private(r"hats?", frozenset({"4"}))
SALARY = Private("salary", frozenset({"0.26", "26%", "26"}))


@pytest.mark.parametrize(
    "text",
    [
        "3*2 + 1*2 = 8",
        "3 x 2 = 6",
        "3 books × 2 points each = 6 points",
        "(3 × 2) + (1 × 2) = 8",
        r"\(3 \times 2 + 1 \cdot 2 = 8\)",
        "So $100 - $40 = $60.",
        "2 times 3 is 6",
        "Salary: 0.14 * 0.68 + Holiday: 0.33 * 0.5 = 0.26",
        "**3 + 5** = 8",
        "My score would be 0.75.",
        "That adds up to 8 points.",
        "This gives me 8 points.",
        "a total of 8 points for you",
    ],
)
def test_a_calculation_is_found(text: str) -> None:
    assert calculates(text)


@pytest.mark.parametrize(
    "text",
    [
        "I take 3 books + 1 hat.",
        "anything from 20 - 51",
        "between 2-3 days, Holiday=4",
        "A=1 B=2 C=3",
        "a total of 6 items, 3 of them books",
        "I paid $90, so $60 it is.",
        "Let us keep the score fair.",
        r"\boxed{3 * 2 = 6}",
        r"\boxed{AGREED: MINE: book=3 hat=0 ball=1; THEIRS: book=0 hat=1 ball=1}",
        "7 days, 4 of them = holidays",
        "",
    ],
)
def test_what_only_looks_like_a_calculation(text: str) -> None:
    assert not calculates(text)


@pytest.mark.parametrize(
    "text",
    [
        "A book is worth 2 to me.",
        "My values: hats (4), books (2).",
        "I value each hat at 4",
        "I get 4 points for the hat.",
        "My weight on salary is 0.26.",
        "My weights: salary=26%",
        "Well. Hats are worth 4 points for me!",
        "To me, books, which I love, are worth 2",
    ],
)
def test_a_private_number_is_found(text: str) -> None:
    assert reveals(text, [BOOKS, HATS, SALARY])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("I want 2 books", "a count"),
        ("I value books, so 2 books for me", "a count beside the thing"),
        ("I value books: 4 hats for me", "another thing's number"),
        ("The hat is worth 2 to me", "the number of another thing"),
        ("Hats are worth 4 to you", "the other side's"),
        ("The hat is worth 4", "nobody's"),
        ("I want a salary of 26", "no word about worth"),
        ("My value for salary: 0.265", "another number"),
        (r"I value it. \boxed{hat=4}", "in a box"),
        ("I give you points. Hat 4", "another sentence"),
        ("", "nothing"),
    ],
)
def test_what_only_looks_like_a_private_number(text: str, why: str) -> None:
    assert not reveals(text, [BOOKS, HATS, SALARY]), why


def test_boxes_are_cut_out_nested_ones_too() -> None:
    assert words(r"a \boxed{\text{AGREED: \$2}} b \boxed {x} c \boxed{open").split() == [
        "a",
        "b",
        "c",
        "\\boxed{open",
    ]


@given(st.text(alphabet="12 +-*=.x($)books hat{}\\", max_size=300))
def test_no_text_is_too_much(text: str) -> None:
    calculates(text)
    reveals("my points: " + text, [BOOKS, HATS])


@pytest.mark.parametrize("piece", ["1 a a a ", "1+", "(1 * ", "1 a b: c: 1 ", "hat ", "my points "])
def test_hostile_text_is_read_fast(piece: str) -> None:
    """A message of a broken model may be long: the patterns must not try every way to read it."""
    text = "my points: " + piece * 2000
    started = time.perf_counter()
    calculates(text)
    reveals(text, [BOOKS, HATS, SALARY])
    assert time.perf_counter() - started < 2
