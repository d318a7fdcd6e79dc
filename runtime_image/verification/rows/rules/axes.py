"""Operators that cut, join, pad or reorder along axes; none may be the row axis."""

from __future__ import annotations

from collections.abc import Sequence

from runtime_image.verification.rows.node import Node, axes_of, axis_of, untouched
from runtime_image.verification.rows.numbering import is_endless, python_slice
from runtime_image.verification.rows.rules.indexing import indices_of
from runtime_image.verification.rows.rules.registry import rule
from runtime_image.verification.rows.sizes import (
    ONE,
    ZERO,
    Size,
    Unknown,
    at_least,
    never_more,
)
from runtime_image.verification.rows.states import NONE, Dims, Mixed, Tensor


@rule("Concat 4 11 13", numbered=True)
def concat(node: Node) -> Tensor:
    """Join tensors along one axis."""
    parts = node.given
    axis = axis_of(node.get("axis", 1), parts[0].rank)
    if any(part.rank != parts[0].rank for part in parts):
        raise Mixed("joins tensors with different numbers of axes")
    if len(parts) > 1 and any(part.state.kind in ("number", "index") for part in parts):
        if axis != parts[0].rank - 1:
            raise Mixed("uses the position of a row as data")
        return Tensor(indices_of(parts), _joined_dims(parts, axis))
    return joined(parts, axis)


def joined(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Return tensors joined along an axis."""
    if len(parts) == 1:
        return Tensor(parts[0].state, parts[0].dims)
    found = {part.state for part in parts}
    if len(found) > 1:
        raise Mixed("combines rows with a tensor without rows, or rows on different axes")
    state = found.pop()
    untouched(state, [axis], "joins along")
    _check_places(parts, axis)
    return Tensor(state, _joined_dims(parts, axis), below=_below(parts))


def _check_places(parts: Sequence[Tensor], axis: int) -> None:
    """Raise Mixed if a part may be empty although the others are not.

    ONNX Runtime then skips it, does not compare its other sizes, and leaves its share of the result
    uninitialised, with other callers' data in memory.
    """
    heads = {part.sizes[:axis] + part.sizes[axis + 1 :] for part in parts}
    if len(heads) > 1 and not all(at_least(size, 1) for part in parts for size in part.sizes):
        raise Mixed("joins a part that may be empty where others are not")


def _joined_dims(parts: Sequence[Tensor], axis: int) -> Dims:
    total = ZERO
    for part in parts:
        total = total + part.size(axis)
    return (*parts[0].shape[:axis], total, *parts[0].shape[axis + 1 :])


def _below(parts: Sequence[Tensor]) -> Size | None:
    highest = parts[0].below
    for part in parts[1:]:
        if highest is None or part.below is None:
            return None
        if never_more(highest, part.below):
            highest = part.below
        elif not never_more(part.below, highest):
            return None
    return highest


@rule("Split 2 11 13 18", reads=(1,))
def split(node: Node) -> list[Tensor]:
    """Split one axis (default 0) into parts."""
    tensor = node.tensor(0)
    axis = axis_of(node.get("axis", 0), tensor.rank)
    untouched(tensor.state, [axis], "splits")
    count = len(node.used)
    lengths = _lengths(node, tensor.size(axis), count)
    below = tensor.below if tensor.state.is_none else None
    return [Tensor(tensor.state, _with(tensor, axis, size), below=below) for size in lengths]


def _lengths(node: Node, size: Size, count: int) -> list[Size]:
    given = node.get("split")
    if given is not None:
        return [Size.of(length) for length in given]
    if node.has(1):
        return [_positive(node, length) for length in node.elements(1)]
    if node.get("num_outputs", count) != count:
        raise Mixed("leaves out parts")
    if node.since == 18 and size.constant is not None:
        each = -(-size.constant // count)
        return [Size.of(min(each, size.constant - each * place)) for place in range(count)]
    exact = size.divided(Size.of(count))
    if exact is not None:
        return [exact] * count
    return [node.symbols.derived(("split", size, count, place)) for place in range(count)]


def _positive(node: Node, size: Size) -> Size:
    return size if at_least(size, 0) else node.symbols.derived(("sized", size))


def _with(tensor: Tensor, axis: int, size: Size) -> tuple[Size, ...]:
    return (*tensor.sizes[:axis], size, *tensor.sizes[axis + 1 :])


@rule("SplitToSequence 11 24")
def split_to_sequence(node: Node) -> Tensor:
    """Split an axis into a sequence of slices of one place each."""
    tensor = node.tensor(0)
    axis = axis_of(node.get("axis", 0), tensor.rank)
    untouched(tensor.state, [axis], "splits")
    if node.has(1):
        raise Mixed("splits into a sequence of longer parts, which is not judged")
    if node.flag("keepdims", 1):
        return Tensor(tensor.state, _with(tensor, axis, ONE), is_sequence=True)
    state = tensor.state
    if state.has_axis:
        state = state.at(state.axis - (state.axis > axis))
    return Tensor(state, (*tensor.sizes[:axis], *tensor.sizes[axis + 1 :]), is_sequence=True)


@rule("SequenceAt 11", sequences=True)
def sequence_at(node: Node) -> Tensor:
    """Take one tensor of a sequence, the same for all rows."""
    node.without_rows(1)
    return node.tensor(0).with_(is_sequence=False)


@rule("Slice 1 10 11 13", reads=(1, 2, 3, 4))
def cut(node: Node) -> Tensor:
    """Slice from `starts` to `ends` by `steps` along `axes`."""
    tensor = node.tensor(0)
    starts, ends = _list(node, "starts", 1), _list(node, "ends", 2)
    named = node.get("axes")
    if named is None:
        named = node.integers(3) if node.has(3) else list(range(len(starts)))
    steps = node.elements(4) if node.has(4) else [ONE] * len(starts)
    dims = list(tensor.sizes)
    for place, axis in enumerate(axes_of(named, tensor.rank)):
        start, end, step = starts[place], ends[place], steps[place]
        if tensor.state.has_axis and tensor.state.axis == axis:
            if not _is_whole(dims[axis], start, end, step):
                raise Mixed(f"cuts the rows' axis {axis}")
            continue
        dims[axis] = cut_length(node, dims[axis], start, end, step)
    return Tensor(tensor.state, tuple(dims), below=tensor.below)


def _list(node: Node, attribute: str, position: int) -> list[Size]:
    if attribute in node.attributes:
        return [Size.of(number) for number in node.attributes[attribute]]
    return node.elements(position)


def _is_whole(size: Size, start: Size, end: Size, step: Size) -> bool:
    return start == ZERO and step == ONE and (is_endless(end) or never_more(size, end))


def cut_length(node: Node, size: Size, start: Size, end: Size, step: Size) -> Size:
    """Return the length of a slice of an axis without rows."""
    known = [number.constant for number in (start, end, step, size)]
    numbers = [number for number in known if number is not None]
    if len(numbers) == len(known) and numbers[2] != 0:
        return Size.of(len(range(numbers[3])[python_slice(*numbers)]))
    try:
        first, last = _clipped(node, size, start), _clipped(node, size, end)
        if step == ONE and first is not None and last is not None and never_more(first, last):
            return last - first
    except Unknown:
        pass
    return node.symbols.derived(("slice", size, start, end, step), 0, (size,))


def _clipped(node: Node, size: Size, place: Size) -> Size | None:
    """Return a place clipped to [0, size]; a negative one counts from the end. None if unknown."""
    if is_endless(place):
        return size
    if at_least(place, 0):
        return node.symbols.minimum(place, size)
    if at_least(-place, 1) and at_least(size + place, 0):
        return size + place
    # Unknown: whether the place counts from the end, or is before the start, is undecided.
    return None


@rule("Pad 2 11 13 18 19 21 23 24 25", reads=(1, 3))
def pad(node: Node) -> Tensor:
    """Pad or crop at both ends of axes."""
    tensor = node.tensor(0)
    node.without_rows(2)
    pads = _list(node, "pads", 1)
    axes = axes_of(node.integers(3), tensor.rank) if node.has(3) else list(range(tensor.rank))
    if len(pads) != 2 * len(axes):
        raise Mixed("has pads that do not fit its input")
    dims = list(tensor.sizes)
    for place, axis in enumerate(axes):
        before, behind = pads[place], pads[place + len(axes)]
        if before == ZERO and behind == ZERO:
            continue
        untouched(tensor.state, [axis], "pads")
        dims[axis] = _padded(node, dims[axis], before, behind)
    return Tensor(tensor.state, tuple(dims))


def _padded(node: Node, size: Size, before: Size, behind: Size) -> Size:
    total = size + before + behind
    if at_least(total, 0) and not total.has_rows:
        return total
    return node.symbols.derived(("padded", size, before, behind))


@rule("OneHot 9 11", reads=(1,))
def one_hot(node: Node) -> Tensor:
    """Add a new axis, by default the last."""
    tensor = node.tensor(0)
    node.without_rows(2)
    (depth,) = node.elements(1)
    if not at_least(depth, 0):
        depth = node.symbols.derived(("sized", depth))
    axis = axis_of(node.get("axis", -1), tensor.rank + 1)
    dims = (*tensor.shape[:axis], depth, *tensor.shape[axis:])
    state = tensor.state
    if state.has_axis:
        state = state.at(state.axis + (state.axis >= axis))
    return Tensor(state, dims)


@rule("Trilu 14", reads=())
def triangle(node: Node) -> Tensor:
    """Keep a triangle of the last two axes."""
    tensor = node.tensor(0)
    node.without_rows(1)
    untouched(tensor.state, [tensor.rank - 2, tensor.rank - 1])
    return Tensor(tensor.state, tensor.dims)


@rule("ReverseSequence 10")
def reverse(node: Node) -> Tensor:
    """Reverse each sequence along the time axis, up to its own length."""
    tensor, lengths = node.tensor(0), node.tensor(1)
    batch, time = node.get("batch_axis", 1), node.get("time_axis", 0)
    state = tensor.state
    if state.is_none and lengths.state.is_none:
        return Tensor(NONE, tensor.dims)
    if not state.has_axis or time == state.axis:
        raise Mixed("reverses the order of rows, or combines rows with data without rows")
    if batch == state.axis:
        if lengths.state != state.at(0):
            raise Mixed("has lengths that do not have the same rows")
    elif not lengths.state.is_none:
        raise Mixed("has lengths that depend on rows for data without rows")
    return Tensor(state, tensor.dims)


@rule("CenterCropPad 18", reads=(1,))
def crop_or_pad(node: Node) -> Tensor:
    """Cut or pad axes at both ends to a given size."""
    tensor = node.tensor(0)
    axes = axes_of(node.get("axes") or range(tensor.rank), tensor.rank)
    asked = node.elements(1)
    dims = list(tensor.sizes)
    for axis, size in zip(axes, asked, strict=True):
        if size == dims[axis]:
            continue
        untouched(tensor.state, [axis], "cuts or pads")
        dims[axis] = _positive(node, size)
    return Tensor(tensor.state, tuple(dims))
