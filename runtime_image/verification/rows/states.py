"""What is known of a tensor: how its content depends on the rows, its sizes, its numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from runtime_image.verification.rows.sizes import ONE, N, Size


@dataclass(frozen=True, slots=True)
class Culprit:
    """The first operator that mixed rows."""

    operator: str
    node: str
    why: str


class Mixed(Exception):
    """An operator's result may depend on other rows, or nothing is known of it; says why.

    `culprit` is the operator to blame where that is an earlier one.
    """

    def __init__(self, why: str, culprit: Culprit | None = None) -> None:
        super().__init__(why)
        self.culprit = culprit


@dataclass(frozen=True, slots=True)
class State:
    """How a tensor's content depends on the rows.

    "none": it is the same in every run with the same other inputs' sizes.
    "rows": `axis` has outer * N * inner places; place (o * N + row) * inner + j holds what depends
    on `row`, o and j alone, neither on other rows, nor on N, nor on the row's position.
    "number": as "rows", but integers scale * row + offset with 0 <= offset < below.
    "index": as "rows", but column `column` of the last axis is such a "number".
    "padded": rows on axis 0, each filled up with `padding` to the longest row's length.
    "mixed": anything.
    """

    kind: str
    axis: int = 0
    outer: Size = ONE
    inner: Size = ONE
    scale: Size = ONE
    below: Size = ONE
    column: int = 0
    padding: str = ""
    culprit: Culprit | None = None

    @property
    def is_none(self) -> bool:
        """Whether no row is in it."""
        return self.kind == "none"

    @property
    def is_mixed(self) -> bool:
        """Whether it is no longer known to keep rows apart."""
        return self.kind == "mixed"

    @property
    def has_axis(self) -> bool:
        """Whether one axis carries the rows."""
        return self.kind in ("rows", "number", "index")

    @property
    def size(self) -> Size:
        """Of the row axis."""
        return self.outer * N * self.inner

    @property
    def factors(self) -> tuple[Size, Size]:
        """How the rows lie in their axis: (outer, inner)."""
        return self.outer, self.inner

    def at(self, axis: int, outer: Size | None = None, inner: Size | None = None) -> State:
        """The same content with its rows on another axis."""
        return replace(self, axis=axis, outer=outer or self.outer, inner=inner or self.inner)


NONE: Final = State("none")


def rows(axis: int, outer: Size = ONE, inner: Size = ONE) -> State:
    """Rows on `axis`."""
    return State("rows", axis, outer, inner)


def mixed(culprit: Culprit | None = None) -> State:
    """Mixed. Without a culprit the tensor holds the number of rows and is to be read by its
    `numbers` alone; the first operator that reads its content becomes the culprit."""
    return State("mixed", culprit=culprit)


Dims = tuple[Size | None, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value between two nodes.

    `dims`: None where not even the rank is known; a size in it is None where it is not known, in
    mixed tensors only.
    `numbers`: the elements as an array of Size or None (unknown), for small tensors of integers
    and truth values only.
    `below`: elements of a tensor without rows lie in [0, below).
    """

    state: State
    dims: Dims | None = None
    numbers: Any = None
    below: Size | None = None
    constant: Any = None
    """The elements as a NumPy array, for small constants of floats and strings."""
    is_narrow: bool = False
    """Whether `numbers` have 32 bits, which computing with them may leave."""
    is_sequence: bool = False
    """Whether it is a sequence, of which each tensor is like this one."""

    @property
    def rank(self) -> int:
        """Number of axes. Raises Mixed where it is not known."""
        return len(self.shape)

    @property
    def shape(self) -> Dims:
        """Raises Mixed where the rank is not known."""
        if self.dims is None:
            raise Mixed("has an input whose rank is not known")
        return self.dims

    def size(self, axis: int) -> Size:
        """Of one axis. Raises Mixed where it is not known."""
        size = self.shape[axis]
        if size is None:
            raise Mixed("has an input whose size depends on the rows")
        return size

    @property
    def sizes(self) -> tuple[Size, ...]:
        """Of all axes. Raises Mixed where one is not known."""
        return tuple(self.size(axis) for axis in range(self.rank))

    def with_(self, **changes: Any) -> Tensor:
        """A copy with other fields."""
        return replace(self, **changes)
