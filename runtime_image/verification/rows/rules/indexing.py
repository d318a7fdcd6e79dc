"""Operators that read or write places named by indices.

An index that depends on rows may only refer to places of its own row, or of a table without rows.
An index without rows refers to the same places for each row. On the row axis itself only the row
number may be an index: -1 there would read the previous row.
"""

from __future__ import annotations

from runtime_image.verification.rows.node import Node, axis_of, untouched
from runtime_image.verification.rows.rules.registry import rule
from runtime_image.verification.rows.sizes import ONE, ZERO, never_more
from runtime_image.verification.rows.states import NONE, Dims, Mixed, State, Tensor, rows

ON_ROWS = "indexes the rows' axis by something other than the row's position"


def names_own_row(number: State, data: State) -> bool:
    """Whether a row number refers to a place of its own row on the data's row axis.

    The number is scale * row + offset; place row * inner + j belongs to `row` for j < inner.
    """
    return number.scale == data.inner and never_more(number.below, data.inner)


@rule("Gather 1 11 13", numbered=True)
def slices(node: Node) -> Tensor:
    """Gather slices of one axis. Data that contains row numbers is refused."""
    data, indices = node.tensor(0), node.tensor(1)
    axis = axis_of(node.get("axis", 0), data.rank)
    dims = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    state = _gathered(data, indices, axis)
    below = data.below if state.is_none else None
    return Tensor(state, dims, below=below)


def _gathered(data: Tensor, indices: Tensor, axis: int) -> State:
    own, index = data.state, indices.state
    if own.kind in ("number", "index") or index.kind == "index":
        raise Mixed("uses the position of a row as data")
    if own.is_none:
        if index.kind == "number":
            raise Mixed("uses the position of a row as data")
        return index.at(index.axis + axis) if index.has_axis else NONE
    if own.axis == axis:
        if index.kind != "number" or not names_own_row(index, own):
            raise Mixed(ON_ROWS)
        return rows(index.axis + axis, *index.factors)
    if index.has_axis:
        raise Mixed("looks up rows by other rows")
    return own.at(own.axis if own.axis < axis else own.axis - 1 + indices.rank)


@rule("GatherElements 11 13", "ScatterElements 11 13 16 18")
def by_elements(node: Node) -> Tensor:
    """Index [.., i, ..] refers to a place of the same line along `axis`."""
    data, indices = node.tensor(0), node.tensor(1)
    axis = axis_of(node.get("axis", 0), data.rank)
    operands = [data, *node.given[1:]]
    found = {tensor.state for tensor in operands if tensor.state.has_axis}
    result = indices if node.operator == "GatherElements" else data
    if not found:
        return Tensor(NONE, result.dims)
    if len(found) > 1 or any(tensor.state.is_none for tensor in operands):
        raise Mixed("combines rows on different axes")
    state = found.pop()
    untouched(state, [axis], "indexes along")
    return Tensor(state, result.dims)


def _columns(indices: Tensor) -> int:
    """Return the number of axes that an index of GatherND or ScatterND covers."""
    count = indices.size(indices.rank - 1).constant
    if count is None:
        raise Mixed("has indices whose number of columns is not fixed")
    if indices.state.has_axis and indices.state.axis == indices.rank - 1:
        raise Mixed("has rows as the columns of its indices")
    return count


@rule("GatherND 11 12 13", numbered=True)
def gather_nd(node: Node) -> Tensor:
    """Each line of the indices' last axis refers to a slice of the data."""
    data, indices = node.tensor(0), node.tensor(1)
    batch, count = node.get("batch_dims", 0), _columns(indices)
    if data.state.kind in ("number", "index") or indices.state.kind == "number":
        raise Mixed("uses the position of a row as data")
    head: Dims = indices.shape[:-1]
    dims = head + data.shape[batch + count :]
    return Tensor(_gathered_nd(data.state, indices, batch, count), dims)


def _gathered_nd(data: State, indices: Tensor, batch: int, count: int) -> State:
    index = indices.state
    if data.is_none:
        if index.kind == "index" or (index.has_axis and index.axis < batch):
            raise Mixed("combines rows with an axis that has no rows")
        return index
    if data.axis < batch:
        if index.kind != "rows" or index != data:
            raise Mixed("combines rows on different axes")
        return index
    if data.axis < batch + count:
        if not _column_is_own(index, data, data.axis - batch):
            raise Mixed(ON_ROWS)
        return rows(index.axis, *index.factors)
    if index.has_axis:
        raise Mixed("looks up rows by other rows")
    return data.at(indices.rank - 1 + data.axis - batch - count)


def _column_is_own(index: State, data: State, column: int) -> bool:
    return index.kind == "index" and index.column == column and names_own_row(index, data)


@rule("ScatterND 11 13 16 18", numbered=True)
def scatter_nd(node: Node) -> Tensor:
    """Each line of the indices' last axis refers to a slice of the data to write."""
    data, indices, updates = node.tensor(0), node.tensor(1), node.tensor(2)
    count = _columns(indices)
    states = (data.state, indices.state, updates.state)
    if all(state.is_none for state in states):
        return Tensor(NONE, data.dims)
    if any(s.kind in ("number", "index") for s in (states[0], states[2])):
        raise Mixed("uses the position of a row as data")
    own, index, written = states
    if own.kind != "rows" or written.kind != "rows":
        raise Mixed("writes rows into data without rows, or the reverse")
    if own.axis >= count:
        fits = index.is_none and written == own.at(indices.rank - 1 + own.axis - count)
    else:
        fits = _column_is_own(index, own, own.axis)
        fits = fits and written == rows(index.axis, *index.factors)
    if not fits:
        raise Mixed(ON_ROWS)
    return Tensor(own, data.dims)


def indices_of(parts: list[Tensor]) -> State:
    """Return the state of parts joined on the last axis, one of which is a column of row numbers.

    Raises Mixed if several are, or if their rows differ.
    """
    last = parts[0].rank - 1
    numbers = [place for place, p in enumerate(parts) if p.state.kind in ("number", "index")]
    own = parts[numbers[0]].state
    if len(numbers) != 1 or own.kind == "index" or own.axis == last:
        raise Mixed("uses the position of a row as data")
    before = ZERO
    for part in parts[: numbers[0]]:
        before = before + part.size(last)
    if parts[numbers[0]].size(last) != ONE or before.constant is None:
        raise Mixed("has indices whose columns are not known")
    meeting = {(p.state.has_axis, p.state.axis, p.state.factors) for p in parts}
    if len(meeting) > 1:
        raise Mixed("combines rows on different axes")
    return State("index", own.axis, *own.factors, own.scale, own.below, column=before.constant)
