"""Tables as text and as JSON."""

from __future__ import annotations

import json

import pytest

from benchmarks.measuring.record import Record
from benchmarks.measuring.report import Comparison, Grid, Note, compare, number

VALUES = {"hello": [10.0, 20.0, 30.0], "ours": [20.0, 50.0, 60.0]}


def test_a_comparison_shows_medians_ratios_and_what_is_wanted() -> None:
    """There is one row per case; the ratio is the median of the ratios per round."""
    lines = Comparison("us", VALUES, "hello", {"ours": "ratio 2 at most"}, "warm calls").lines()

    assert lines[:2] == ["warm calls", ""]
    assert lines[2].startswith("| case | median us | min | max | ratio to hello | range of ratios")
    assert lines[-1] == (
        "| ours | 50.0 | 20.0 | 60.0 | 2.00 | 2.00 to 2.50 | 30.0 | ratio 2 at most |"
    )


def test_a_comparison_without_reference_has_no_ratios() -> None:
    """Without a reference there is no ratio."""
    lines = Comparison("us", VALUES).lines()

    assert lines[0] == "| case | median us | min | max |"
    assert lines[2] == "| hello | 20.0 | 10.0 | 30.0 |"


def test_the_json_has_every_value() -> None:
    """The JSON holds every value unrounded."""
    data = json.loads(json.dumps(Comparison("us", VALUES, "hello", {"ours": "less"}).to_json()))

    assert [case["case"] for case in data["cases"]] == ["hello", "ours"]
    ours = data["cases"][1]
    assert ours["values"] == [20.0, 50.0, 60.0]
    assert ours["ratio"] == {"median": 2.0, "min": 2.0, "max": 2.5}
    assert ours["difference"] == {"median": 30.0, "min": 10.0, "max": 30.0}
    assert (ours["median"], ours["wanted"], data["reference"]) == (50.0, "less", "hello")


def test_an_unknown_reference_is_refused() -> None:
    """An unknown reference is an error: otherwise the table would have no ratios."""
    with pytest.raises(ValueError, match="expected one of hello, ours, got 'helo'"):
        Comparison("us", VALUES, "helo")


def test_there_is_a_table_for_each_metric_and_ratios_where_the_reference_has_it() -> None:
    """A reference server has no replica, so the replica's figures have no ratio."""
    record = Record()
    record.add("hello", {"us": 1.0})
    record.add("ours", {"us": 2.0, "replica us": 3.0})

    tables = compare(record, "hello", targets={"us": {"ours": "2"}}, title="t")

    assert [(table.metric, table.reference) for table in tables] == [
        ("us", "hello"),
        ("replica us", ""),
    ]
    assert tables[0].targets == {"ours": "2"}
    assert compare(record, "hello", cases=["nobody"]) == []


def test_grids_and_notes_are_parts_of_a_report_too() -> None:
    """Cells may be text or numbers."""
    grid = Grid(["second", "answers"], [("0", 12.34)], "by second")

    assert grid.lines() == [
        "by second",
        "",
        "| second | answers |",
        "| --- | --- |",
        "| 0 | 12.3 |",
    ]
    assert grid.to_json()["rows"] == [["0", 12.34]]
    assert Note("so").lines() == ["so"]
    assert Note("so").to_json() == {"note": "so"}


@pytest.mark.parametrize(
    ("value", "text"), [(0.123, "0.12"), (12.34, "12.3"), (-1234.5, "-1,234"), (0, "0.00")]
)
def test_numbers_have_digits_that_mean_something(value: float, text: str) -> None:
    """Numbers have significant digits only; large ones have no decimals."""
    assert number(value) == text
