"""Tables about candidates of other precision, as a trial reports them."""

from __future__ import annotations

from typing import Any

import pytest

from pool_manager.replicas.precision_reports import CANDIDATE_FILE, optimised
from registry.model.bundles import BundleFile
from runtime_image.contract.precision import RULES, Optimisation, Precision
from runtime_image.link.frames import LinkError
from tests.support.offers import ROW, precision_report

MIB = 2**20


def parsed(report: Any, precision: Precision = "auto", tolerance: float = 0.01) -> Any:
    return optimised(report, Optimisation(precision, tolerance), "m.onnx", MIB)


def column(**changes: Any) -> dict[str, Any]:
    return {**ROW["column"], **changes}


def candidate(report: dict[str, Any], which: str, /, **changes: Any) -> dict[str, Any]:
    """Return the report with changes in one of its rows; None removes a key."""
    for row in report["candidates"]:
        if row["name"] == which:
            row.update(changes)
            for key in [key for key, value in changes.items() if value is None]:
                del row[key]
    return report


def test_a_chosen_candidate_is_a_file_of_the_servers_name() -> None:
    """The size is the trial's, name and tolerance are the server's; unknown keys are dropped."""
    report = {**precision_report(), "tolerance": 0.9, "path": "../../x"}
    candidate(report, "int8", file="../../etc/passwd")

    found = parsed(report)

    assert found.model == "m.onnx"
    assert found.file == BundleFile(CANDIDATE_FILE, 9, "")
    assert (found.table["chosen"], found.table["tolerance"]) == ("int8", 0.01)
    assert found.table["rules"] == RULES
    assert "path" not in found.table
    int8 = found.table["candidates"][1]
    assert int8 == precision_report()["candidates"][1]


def test_the_original_is_no_file() -> None:
    """Where the original was chosen, nothing is fetched, whatever size is said."""
    found = parsed({**precision_report(), "chosen": "original", "size": 5})

    assert found.file is None
    assert "size" not in found.table


def test_an_implausible_figure_is_left_out() -> None:
    """A broken candidate may differ by more than a number can say; the table is shown without."""
    report = candidate(
        {**precision_report(), "chosen": "original"},
        "int8",
        why_not="broken",
        largest_difference=float("inf"),
        cosine=float("nan"),
        same_label=-3,
        memory_mib="much",
        column=None,
    )

    row = parsed(report).table["candidates"][1]

    assert row.keys() == {"name", "why_not", "latency_ms", "file_bytes", "batchable"}


def test_a_columns_name_is_bounded() -> None:
    """It comes from a replica, and is shown."""
    long = candidate(precision_report(), "int8", column=column(output="y" * 999, part="\ud800"))

    row = parsed(long).table["candidates"][1]

    assert (len(row["column"]["output"]), row["column"]["part"]) == (200, "?")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cosine": 0.98}, "agreement within 0.01, got cosine 0.98"),
        ({"column": None}, "expected its worst column, got none"),
        ({"column": {}}, "KeyError"),
        ({"column": column(error=0.021)}, "an error of at most 0.02 of a column, got 0.021"),
        ({"column": column(error=0.012, gain=None)}, "of at most 0.001 of a column"),
        ({"column": column(error_max=0.5, error=0.4)}, "of at most 0.02 of a column, got 0.4"),
        ({"column": column(error=float("nan"))}, "expected a number from 0 to"),
        ({"column": column(bias=float("inf"))}, "expected a finite number, got 'inf'"),
        ({"column": column(spread=True)}, "expected a finite number, got 'True'"),
        ({"same_label": 0.97}, "agreement within 0.01"),
        ({"cosine": None, "same_label": None}, "agreement within 0.01, got cosine None"),
        ({"why_not": "slower"}, "no reason against it, got 'slower'"),
        ({"name": "int4"}, "name: expected"),
        ({"latency_ms": {"x": 1.0}}, "ValueError"),
        ({"latency_ms": {"1": -1.0}}, "expected a number from 0 to 1e"),
        ({"latency_ms": []}, "AttributeError"),
        ({"file_bytes": 1.5}, "whole number"),
    ],
)
def test_a_choice_must_be_within_the_owners_tolerance(changes: Any, reason: str) -> None:
    """The server compares the chosen candidate's figures itself, and refuses malformed rows."""
    with pytest.raises(LinkError, match=reason):
        parsed(candidate(precision_report(), "int8", **changes))
    for missing in ("cosine", "same_label"):
        assert parsed(candidate(precision_report(), "int8", **{missing: None})).file is not None
    same = candidate(
        precision_report(), "int8", cosine=0.98, same_label=0.97, column=column(error=0.09)
    )
    assert parsed(same, tolerance=0.05).file is not None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"chosen": "fp16"}, "chosen: expected one of"),
        ({"chosen": None}, "chosen: expected one of"),
        ({"candidates": []}, "a list of 1 to 4"),
        ({"candidates": precision_report()["candidates"] * 2}, "expected different ones"),
        ({"candidates": precision_report()["candidates"][1:]}, "and the original"),
        ({"candidates": [None]}, "TypeError"),
        ({"size": 0}, "bytes of the chosen candidate"),
        ({"size": 66 * MIB + 1}, f"from 0 to {66 * MIB}"),
        ({"size": True}, "whole number"),
        ({"judged": -1}, "whole number"),
    ],
)
def test_a_table_must_make_sense(changes: dict[str, Any], reason: str) -> None:
    """Foreign names, repeated rows and sizes above the limit are refused."""
    with pytest.raises(LinkError, match=reason):
        parsed({**precision_report(), **changes})


@pytest.mark.parametrize("report", [None, [], "table", {}])
def test_a_table_must_be_there(report: Any) -> None:
    """A trial that was asked for candidates and reports none is refused."""
    with pytest.raises(LinkError, match="malformed report of precision"):
        parsed(report)


def test_only_the_wanted_precision_may_be_chosen() -> None:
    """Where a precision was named, no other one is served instead, nor the original."""
    assert parsed(precision_report(), "int8").file is not None
    for report in (precision_report(), {**precision_report(), "chosen": "original"}):
        with pytest.raises(LinkError, match="chosen: expected one of"):
            parsed(report, "fp16")
