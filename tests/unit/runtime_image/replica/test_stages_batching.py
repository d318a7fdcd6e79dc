"""Which decoded requests run together."""

from __future__ import annotations

import pytest

from runtime_image.contract.rows import CONSTANT
from runtime_image.replica.stages import Candidate, group, row_ranges, violates


@pytest.mark.parametrize(
    ("items", "rows_max", "groups"),
    [
        ([], 4, []),
        ([("a", 1, "s"), ("b", 1, "s")], 4, [["a", "b"]]),
        ([("a", 3, "s"), ("b", 2, "s"), ("c", 2, "s")], 4, [["a"], ["b", "c"]]),
        ([("a", 1, "s"), ("b", 1, "t"), ("c", 1, "s")], 4, [["a", "c"], ["b"]]),
        ([("a", 9, "s"), ("b", 1, "s")], 4, [["a"], ["b"]]),
        ([("a", 1, "s"), ("b", 1, "s")], 1, [["a"], ["b"]]),
    ],
)
def test_requests_are_grouped(
    items: list[tuple[str, int, str]], rows_max: int, groups: list[list[str]]
) -> None:
    """Equal shapes join up to the rows allowed; a request with more rows than that runs alone."""
    candidates = [(name, Candidate(rows, shape)) for name, rows, shape in items]

    assert group(candidates, rows_max) == groups


def test_rows_are_found_again() -> None:
    """Each request's rows lie behind those before it, without a gap."""
    assert row_ranges([1, 3, 2]) == [(0, 1), (1, 4), (4, 6)]
    assert row_ranges([]) == []


@pytest.mark.parametrize(
    ("shapes", "is_violated"),
    [
        ({"a": (1, 2), "b": (1, 2)}, False),
        ({"a": (3, 2), "b": (3, 2)}, False),
        ({"a": (1, 2), "b": (1, 3)}, True),
    ],
)
def test_conditions_of_the_proof(shapes: dict[str, tuple[int, ...]], is_violated: bool) -> None:
    """Axes that it supposes to have one size."""
    assert violates(shapes, ((("a", 1), ("b", 1)),)) is is_violated
    assert not violates(shapes, ())


def test_a_condition_may_name_the_size_itself() -> None:
    """The one size for which there is a proof; a dynamic axis (-1) is not known to have it."""
    condition = ((("a", 1), (CONSTANT, 12)),)

    assert not violates({"a": (3, 12)}, condition)
    assert violates({"a": (3, 11)}, condition)
    assert violates({"a": (-1, -1)}, condition)
