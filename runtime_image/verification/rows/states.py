"""Abstract state of a tensor: how its content depends on the rows, its sizes, its numbers."""

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
    """An operator's result may depend on other rows, or nothing is known of it; the text says why.

    `culprit` is the operator at fault if it is an earlier one.
    """

    def __init__(self, why: str, culprit: Culprit | None = None) -> None:
        super().__init__(why)
        self.culprit = culprit


@dataclass(frozen=True, slots=True)
class State:
    """How a tensor's content depends on the rows.

    "none": the same in every run whose inputs have the same other sizes.
    "rows": `axis` has outer * N * inner places. Place (o * N + row) * inner + j depends only on
    `row`, o and j, not on other rows, on N, or on the row's position.
    "number": as "rows", but integers scale * row + offset with 0 <= offset < below.
    "index": as "rows", but column `column` of the last axis is such a "number".
    "padded": rows on axis 0, each padded with `padding` to the length of the longest row.
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
        """Whether the content is independent of the rows."""
        return self.kind == "none"

    @property
    def is_mixed(self) -> bool:
        """Whether the content may depend on several rows."""
        return self.kind == "mixed"

    @property
    def has_axis(self) -> bool:
        """Whether one axis is the row axis."""
        return self.kind in ("rows", "number", "index")

    @property
    def size(self) -> Size:
        """Size of the row axis."""
        return self.outer * N * self.inner

    @property
    def factors(self) -> tuple[Size, Size]:
        """Layout of the rows within their axis: (outer, inner)."""
        return self.outer, self.inner

    def at(self, axis: int, outer: Size | None = None, inner: Size | None = None) -> State:
        """Return the same state with the rows on another axis."""
        return replace(self, axis=axis, outer=outer or self.outer, inner=inner or self.inner)


NONE: Final = State("none")


def rows(axis: int, outer: Size = ONE, inner: Size = ONE) -> State:
    """Return the state of rows on `axis`."""
    return State("rows", axis, outer, inner)


def mixed(culprit: Culprit | None = None) -> State:
    """Return the mixed state. Without a culprit, the tensor depends on the number of rows and only
    its `numbers` may be used; the first operator that reads its content becomes the culprit."""
    return State("mixed", culprit=culprit)


Dims = tuple[Size | None, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value between two nodes.

    `dims`: None if even the rank is unknown. A size in it is None if it is unknown, in mixed
    tensors only. `numbers`: the elements as an array of Size or None (unknown), only for small
    tensors of integers and truth values. `below`: elements of a tensor without rows are in [0,
    below).
    """

    state: State
    dims: Dims | None = None
    numbers: Any = None
    below: Size | None = None
    constant: Any = None
    """The elements as a NumPy array, for small constants of floats and strings."""
    is_narrow: bool = False
    """Whether `numbers` have 32 bits, which arithmetic may overflow."""
    is_sequence: bool = False
    """Whether it is a sequence; each of its tensors is like this one."""

    @property
    def rank(self) -> int:
        """Number of axes. Raises Mixed if it is unknown."""
        return len(self.shape)

    @property
    def shape(self) -> Dims:
        """Sizes of all axes, None for unknown ones. Raises Mixed if the rank is unknown."""
        if self.dims is None:
            raise Mixed("has an input whose rank is not known")
        return self.dims

    def size(self, axis: int) -> Size:
        """Return the size of one axis. Raises Mixed if it is unknown."""
        size = self.shape[axis]
        if size is None:
            raise Mixed("has an input whose size depends on the rows")
        return size

    @property
    def sizes(self) -> tuple[Size, ...]:
        """Sizes of all axes. Raises Mixed if one is unknown."""
        return tuple(self.size(axis) for axis in range(self.rank))

    def with_(self, **changes: Any) -> Tensor:
        """Return a copy with other field values."""
        return replace(self, **changes)
