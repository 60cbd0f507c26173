"""Tables: three forms of the same numbers, and no text that is more than text."""

from __future__ import annotations

import csv
import io
import math

from iterpo.measure.intervals import Interval
from iterpo.report.tables import Column, Estimate, Table
from report.invented_run import PAYLOADS

MEAN = Interval(0.5, 0.02, 0.4, 0.6, 3, 3)
ALONE = Interval(-0.5, math.nan, -math.inf, math.inf, 1, 1)
TABLE = Table(
    "t",
    "Title",
    (
        Column("who"),
        Column("J", "mean"),
        Column("gain", "difference"),
        Column("p", "p"),
        Column("n", "count"),
    ),
    (
        ("plain", Estimate(MEAN, "seeds"), MEAN, 0.0001, 1200),
        ("one", Estimate(MEAN, "kernels"), ALONE, None, None),
    ),
    best=frozenset({(0, 1)}),
)


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def test_people_read_means_with_their_errors_and_what_these_are_over() -> None:
    first, second = TABLE.cells()
    assert first == ("plain", "0.500 ± 0.020", "+0.500 [+0.400, +0.600]", "<0.001", "1,200")
    assert second == ("one", "0.500 ± 0.020°", "−0.500 (no interval)", "–", "–")


def test_csv_has_plain_numbers_in_columns_of_their_own() -> None:
    head, first, second = read(TABLE.to_csv())
    assert head == [
        *("who", "J", "J SE", "J SE over", "gain", "gain low", "gain high", "p", "n"),
    ]
    assert first == ["plain", "0.5", "0.02", "seeds", "0.5", "0.4", "0.6", "0.0001", "1200"]
    assert second == ["one", "0.5", "0.02", "kernels", "-0.5", "", "", "", ""]
    assert float(second[4]) == -0.5, "a negative number is no formula"


def test_no_text_becomes_a_formula() -> None:
    texts = ["=1+1", "+1", "-1", "@x", "\t=1", "  =1", "\r=1", "＝1", *PAYLOADS]
    table = Table("t", "t", (Column("=a"), Column("b")), tuple((t, "x") for t in texts))
    for row in read(table.to_csv()):
        assert row[0].lstrip(" ")[0] not in "=+-@\t\r\n＝", row
    assert read(table.to_csv())[1][0] == "'=1+1"
    assert len(read(table.to_csv())) == len(texts) + 1, "no text breaks a row"


def test_no_text_becomes_markup_in_markdown() -> None:
    table = Table("t", PAYLOADS[0], (Column("a|b"),), tuple((t,) for t in PAYLOADS))
    text = table.to_markdown()
    lines = text.splitlines()
    assert "<" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "](" not in text
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == len(PAYLOADS) + 2, "a line break in a text begins no row"
    for row in rows:
        assert len([c for i, c in enumerate(row) if c == "|" and row[i - 1] != "\\"]) == 2
    assert "**0.500 ± 0.020**" in TABLE.to_markdown()
