"""The table of candidates, as fnctl shows it."""

from __future__ import annotations

from typing import Any

import pytest

from admin.cli.precision import compared_rows, render_precision, row_ms, summary
from admin.text import NONE
from runtime_image.contract.precision import CandidateReport, PrecisionReport
from tests.support.admin_documents import made
from tests.support.nouns import optimised


def table(*, original: bool = False, **changes: Any) -> PrecisionReport:
    """Return the table as JSON has it."""
    return made(PrecisionReport, {**optimised(original=original).table, **changes})


def test_every_candidate_has_a_line() -> None:
    """Each line has the figures that there are, and says which one serves."""
    lines = render_precision(table()).splitlines()

    assert lines[0].split()[:3] == ["PRECISION", "ONE", "ROW"]
    assert lines[1].split() == [
        "original",
        "1",
        "ms",
        "0.25",
        "ms",
        "at",
        "32",
        *[NONE] * 5,
        "yes",
        NONE,
    ]
    assert lines[0].endswith("SERVES")
    assert lines[2].endswith("yes")
    for text in (
        "0.5 ms",
        "0.12 ms at 32",
        "20 MiB",
        "4 B",
        "0.99950",
        "1.2% y column 3",
        "99.5%",
        "yes",
    ):
        assert text in lines[2]
    assert lines[3] == (
        "int8: y column 3 has an error of 1.2% of its spread 0.3, at most 2% is permitted;"
        " bias -0.001, gain 0.99"
    )
    assert lines[4] == "judged by 200 samples, 32 others calibrated; tolerance 0.01"


@pytest.mark.parametrize(
    ("original", "candidate", "rows", "expected"),
    [
        ({"batchable": True}, {"batchable": True}, 8, (0.3, 8)),
        ({"batchable": True}, {"batchable": False}, 8, (0.5, 1)),
        ({"batchable": False}, {"batchable": True}, 1, (0.5, 1)),
        ({"batchable": True}, {"batchable": True, "latency_ms": {"1": 0.6}}, 8, (0.6, 1)),
        ({"batchable": True}, {"latency_ms": {}}, 8, None),
    ],
)
def test_times_are_compared_where_the_trial_did(
    original: dict[str, Any], candidate: dict[str, Any], rows: int, expected: Any
) -> None:
    """Rows count at the original's useful batch, or alone where they are not joined."""
    latency = {"1": 1.0, "8": 4.0, "32": 15.0}
    first = {"name": "original", "latency_ms": latency, **original}
    report = made(PrecisionReport, {"candidates": [first]})
    own = made(CandidateReport, {"latency_ms": {"1": 0.5, "8": 2.4, "32": 3.2}, **candidate})

    assert compared_rows(report) == rows
    assert row_ms(own, rows) == (pytest.approx(expected) if expected else None)


def test_a_reason_stands_where_nothing_was_chosen() -> None:
    """Where the original serves, each other line says why it does not."""
    text = render_precision(table(original=True, calibrated=0, source="synthetic"))

    assert "\nint8: only 5 % faster\n" in text
    assert text.endswith("judged by 200 random inputs; tolerance 0.01")
    alone = render_precision(table(original=True, calibrated=0, judged=1))
    assert alone.endswith("judged by 1 sample; tolerance 0.01")
    assert summary(table(original=True)) == "the original; fnctl show says why not int8"


def test_the_choice_in_a_line() -> None:
    """A deploy says what was chosen, and what is gained and lost."""
    assert summary(table()) == (
        "int8, 0.12 ms per row instead of 0.25 ms, same label 99.5%, error 1.2% in y column 3"
    )
    candidates = [{"name": "original"}, {"name": "fp16"}]
    bare = made(PrecisionReport, {"chosen": "fp16", "candidates": candidates})
    assert summary(bare) == "fp16"


def test_without_candidates_there_is_nothing() -> None:
    """A function in its model's own precision has no table."""
    assert render_precision(None) == ""


def test_the_figures_of_a_column_stand_once() -> None:
    """A reason against a candidate has those of its column; a constant one has no spread or gain,
    and tables of earlier rules have no column at all."""
    report = table()
    int8 = report["candidates"][1]
    whole = int8.pop("column")
    assert "has an error of" not in render_precision(report)
    assert "cosine 0.99950" in summary(report)

    int8["column"] = {**whole, "error": 0.31}
    assert "has an error of" not in render_precision(report)
    assert "31% y column 3" in render_precision(report)

    int8["column"] = {**whole, "part": "", "gain": None, "spread": 0.0, "error_max": 0.02}
    assert (
        "\nint8: y has an error of 1.2% of its magnitude, it is constant, at most 2% is permitted;"
        " bias -0.001\n"
    ) in render_precision(report)
