"""Which decoded requests run together. Pure.

Unlike shapes are grouped apart, never padded. Requests keep their order of arrival inside a group.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from runtime_image.contract.model import EqualAxes
from runtime_image.contract.rows import CONSTANT

T = TypeVar("T")


class Candidate(NamedTuple):
    """`rows` along the first axis; requests of one `shape` (all but the first axis) may join."""

    rows: int
    shape: Hashable


def group(items: Sequence[tuple[T, Candidate]], rows_max: int) -> list[list[T]]:
    """Split into runs of at most `rows_max` rows; more rows than that in one request run alone.

    Every item is in exactly one group.
    """
    groups: list[list[T]] = []
    open_groups: dict[Hashable, tuple[list[T], int]] = {}
    for item, (rows, shape) in items:
        members, filled = open_groups.get(shape, ([], 0))
        if not members or filled + rows > rows_max:
            members, filled = [], 0
            groups.append(members)
        members.append(item)
        open_groups[shape] = (members, filled + rows)
    return groups


def violates(shapes: Mapping[str, Sequence[int]], equal_axes: EqualAxes) -> bool:
    """Whether the proof that rows are independent does not hold for inputs of these shapes: the
    axes of each group in `equal_axes` must have one size, the constant one where it has one.

    What the proof supposes besides, that no axis is empty and all inputs have as many rows, every
    request was held to when it was decoded.
    """
    for group in equal_axes:
        sizes = {axis if name == CONSTANT else shapes[name][axis] for name, axis in group}
        if len(sizes) > 1:
            return True
    return False


def row_ranges(rows: Iterable[int]) -> list[tuple[int, int]]:
    """Where each request's rows lie in the joined batch: half-open (start, stop) pairs."""
    ranges: list[tuple[int, int]] = []
    start = 0
    for count in rows:
        ranges.append((start, start + count))
        start += count
    return ranges
