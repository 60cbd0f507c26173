"""The box scanner, what it reads from a box, and the closing rules as such."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iterpo.domain import Role, Turn
from iterpo.environments import boxed

Talk = Callable[..., tuple[Turn, ...]]

PIECES = st.sampled_from(
    [
        "\\boxed{",
        "\\boxed {",
        "{",
        "}",
        "\\text{",
        "\\$",
        "$",
        "AGREED",
        "AGREED:",
        "ACCEPT",
        "REJECT",
        "NO DEAL",
        "NO-DEAL",
        " ",
        "\n",
        "split=",
        "5",
        "1,000",
        ".50",
        "MINE:",
        "THEIRS:",
        "book=1",
        "hat=0",
        ";",
        ",",
        "é",
        "ſ",
        "٣",
        "\u2003",
        "\x00",
        "9" * 5000,
        "\\boxed",
        "\\",
    ]
)
TEXTS = st.one_of(st.text(), st.lists(PIECES, max_size=30).map("".join))


def _slow_boxes(text: str) -> list[tuple[int, int]]:
    """The rule of the specification read word by word, in quadratic time."""
    spans, at = [], 0
    while (marker := text.find("\\boxed", at)) >= 0:
        start = marker + len("\\boxed")
        while start < len(text) and text[start].isspace():
            start += 1
        at = marker + 1
        if start >= len(text) or text[start] != "{":
            continue
        depth, at = 0, start + 1
        for i in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[i], 0)
            if depth == 0:
                spans.append((start + 1, i))
                at = i + 1
                break
    return spans


@given(TEXTS)
def test_pain_70_one_scanner_equals_the_plain_reading_of_the_rule(text: str) -> None:
    assert [(a, b) for _, a, b in boxed.spans(text)] == _slow_boxes(text)


@given(TEXTS)
def test_pain_70_no_text_makes_the_readers_raise(text: str) -> None:
    def parse(body: str) -> object:
        boxed.amount_cents(body)
        return boxed.partition(body, ("book", "hat"), (2, 1))

    for tokens in (boxed.MATCHING_TOKENS, boxed.PROPOSAL_TOKENS):
        boxed.act(text, parse, tokens)
    parse(text)
    boxed.outside(text)


@pytest.mark.parametrize(
    "piece", ["\\boxed{", "\\boxed", "{", "}", "\\boxed ", "\\boxed{}", "\\text{"]
)
def test_pain_70_the_scanner_is_linear(piece: str) -> None:
    start = time.perf_counter()
    boxed.boxes("\\boxed{" + piece * 100_000)
    # A quadratic scanner needs minutes; the bound only has to tell these apart.
    assert time.perf_counter() - start < 3


@pytest.mark.parametrize(
    ("text", "bodies"),
    [
        (r"nothing", ()),
        (r"\boxed{a} and \boxed {b}", ("a", "b")),
        (r"\boxed{\boxed{AGREED: $200}}", ("AGREED: $200",)),
        (r"\boxed{\text{AGREED:  \$200}}", ("AGREED: $200",)),
        (r"\boxed{\textbf{\mathrm{NO} DEAL}}", ("NO DEAL",)),
        (r"\boxed{AGREED: $2 then \boxed{AGREED: $200}", ("AGREED: $200",)),
        (r"\boxed{AGREED: $200", ()),
        ("\\boxed{NO\n DEAL}", ("NO DEAL",)),
        (r"\boxed\text{ACCEPT}", ()),
        (r"} \boxed{{a} {b}}", ("a b",)),
    ],
)
def test_boxes(text: str, bodies: tuple[str, ...]) -> None:
    assert boxed.boxes(text) == bodies


@pytest.mark.parametrize(
    ("text", "kind", "invalid"),
    [
        (r"\boxed{accept}", "accept", False),
        (r"\boxed{ACCEPT!}", "accept", False),
        (r"\boxed{ACCEPTED}", "none", True),
        (r"\boxed{ACCEPT: MINE}", "none", True),
        (r"\boxed{no deal.}", "no_deal", False),
        (r"\boxed{NODEAL}", "no_deal", False),
        (r"\boxed{No-Deal}", "no_deal", False),
        (r"\boxed{NO DEAL, sorry}", "none", True),
        (r"\boxed{REJECT}", "reject", False),
        (r"\boxed{17}", "none", False),
        (r"\boxed{AGREED}", "none", True),
        (r"\boxed{AGREED $5}", "agreed", False),
        (r"\boxed{AGREEDX: $5}", "none", True),
        (r"\boxed{AGREED: $5} so \boxed{17}", "agreed", False),
        (r"\boxed{AGREED: $5} \boxed{AGREED: five}", "none", True),
        (r"\boxed{AGREED: $5} \boxed{ACCEPTED}", "none", True),
        (r"I accept", "none", False),
    ],
)
def test_the_last_keyword_box_is_the_action(text: str, kind: str, invalid: bool) -> None:
    act = boxed.act(text, boxed.amount_cents, boxed.PROPOSAL_TOKENS)
    assert (act.kind, act.invalid) == (kind, invalid)


def test_accept_is_no_token_where_boxes_match() -> None:
    act = boxed.act(r"\boxed{AGREED: $5} \boxed{ACCEPT}", boxed.amount_cents, boxed.MATCHING_TOKENS)
    assert (act.kind, act.terms) == ("agreed", 500)


@pytest.mark.parametrize(
    ("text", "cents"),
    [
        ("$200", 20000),
        ("200 USD", 20000),
        ("USD 200", 20000),
        ("200 dollars", 20000),
        ("$<40>", 4000),
        ("<40>", 4000),
        ("$1,250", 125000),
        ("1250.00", 125000),
        ("$200.", 20000),
        ("$0", 0),
        ("33.3", 3330),
        ("$1,25", None),
        ("€200", None),
        ("$X", None),
        ("$<price>", None),
        ("$200 and you collect", None),
        ("$-5", None),
        ("$200-220", None),
        ("$4.5k", None),
        ("$33.333", None),
        ("", None),
        ("$", None),
        ("<40", None),
        ("40>", None),
        ("٣", None),
        ("9" * 5000, None),
    ],
)
def test_amounts(text: str, cents: int | None) -> None:
    assert boxed.amount_cents(text) == cents


def _fold(turns: tuple[Turn, ...], **settings: object) -> boxed.Talk[int]:
    return boxed.matching_boxes(
        turns,
        lambda text: boxed.act(text, boxed.amount_cents, boxed.MATCHING_TOKENS),
        limit=10,
        **settings,  # type: ignore[arg-type]
    )


def test_rule_a_slots_are_independent_and_live_offers_are_visible(talk: Talk) -> None:
    state = _fold(talk("[AGREED: $200]", "[AGREED: $240]", "fine, $240", "[AGREED: five]"))
    assert state.ending is None
    assert state.offers == {Role.PARTNER: 20000, Role.AGENT: 24000}


def test_pain_71_nothing_counts_after_the_end(talk: Talk) -> None:
    state = _fold(talk("[NO DEAL]", "[AGREED: $5]", "[AGREED: $5]"))
    assert (state.ending, state.message, state.by) == ("refused", 1, Role.PARTNER)
