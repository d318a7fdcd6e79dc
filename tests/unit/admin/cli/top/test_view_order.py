from __future__ import annotations

import pytest

from admin.cli.top.view import SORTS, sorted_functions
from tests.support.event_server import line

LINES = [
    line("f", state="cold"),
    line("a", state="cold", held=3),
    line("b", state="warm", rate=900.0, p95_ms=5.0),
    line("c", state="warm", p95_ms=9.0),
    line("d", state="failing"),
    line("e", state="waking"),
]


@pytest.mark.parametrize(
    ("sort", "names"),
    [
        ("activity", "baedcf"),
        ("name", "abcdef"),
        ("state", "debcaf"),
        ("held", "abcdef"),
        ("rate", "bacdef"),
        ("p95", "cbadef"),
    ],
)
def test_functions_are_sorted(sort: str, names: str) -> None:
    """Alike ones by name, whatever order they came in."""
    assert "".join(item["name"] for item in sorted_functions(LINES, sort, "")) == names
    assert sorted_functions(reversed(LINES), sort, "") == sorted_functions(LINES, sort, "")


def test_a_little_more_load_moves_no_row() -> None:
    """Rows would jump every second otherwise."""
    first = [line("a", rate=900.0), line("b", rate=901.0)]

    assert [item["name"] for item in sorted_functions(first, "activity", "")] == ["a", "b"]


def test_a_filter_is_part_of_a_name_or_a_state() -> None:
    """In whatever letters."""
    assert [item["name"] for item in sorted_functions(LINES, "name", "COLD")] == ["a", "f"]
    assert [item["name"] for item in sorted_functions(LINES, "name", "B")] == ["b"]
    assert next(iter(SORTS)) == "activity"
