"""Operators that move elements without changing them.

Row numbers stay valid: only place and factors of the row axis change. Mixed tensors keep the sizes
that are known.
"""

from __future__ import annotations

from collections.abc import Sequence

from runtime_image.verification.rows.broadcasting import meet
from runtime_image.verification.rows.node import Node, axes_of, axis_of
from runtime_image.verification.rows.rules.registry import rule
from runtime_image.verification.rows.sizes import ONE, ZERO, N, Size, Unknown, at_least, product
from runtime_image.verification.rows.states import (
    NONE,
    Dims,
    Mixed,
    State,
    Tensor,
    rows,
)


class Fixed(Exception):
    """A run can only succeed if this symbol has this value."""

    def __init__(self, size: Size, value: int) -> None:
        super().__init__(f"{size} = {value}")
        self.size = size
        self.value = value


@rule("Identity 1 13 14 16 19 21 23 24 25", tolerant=True, numbered=True, padded=True)
def identity(node: Node) -> Tensor:
    """Return the input unchanged."""
    return node.tensor(0)


@rule("Cast 6 9 13 19 21 23 24 25", tolerant=True, numbered=True)
def cast(node: Node) -> Tensor:
    """Convert each element. A row number stays valid as an integer of 32 or 64 bits."""
    tensor = node.tensor(0)
    wide = node.get("to") in (6, 7)
    if tensor.state.kind in ("number", "index") and not wide:
        raise Mixed("uses the position of a row as data")
    return Tensor(tensor.state, tensor.dims, below=tensor.below if wide else None)


@rule("Transpose 1 13 21 23 24 25", tolerant=True, numbered=True)
def transpose(node: Node) -> Tensor:
    """Reorder axes."""
    tensor = node.tensor(0)
    order = node.get("perm") or list(range(tensor.rank))[::-1]
    if sorted(order) != list(range(tensor.rank)):
        raise Mixed("has an order of axes that does not fit its input")
    state = _not_an_index(tensor.state)
    if state.has_axis:
        state = state.at(list(order).index(state.axis))
    return tensor.with_(
        state=state, dims=tuple(tensor.shape[axis] for axis in order), numbers=None, constant=None
    )


@rule("Unsqueeze 1 11 13 21 23 24 25", tolerant=True, numbered=True, reads=(1,))
def unsqueeze(node: Node) -> Tensor:
    """Insert axes of size 1."""
    tensor = node.tensor(0)
    given = node.integers_of("axes", 1)
    if given is None:
        raise Mixed("names no axes")
    rank = tensor.rank + len(given)
    new = axes_of(given, rank)
    if len(set(new)) != len(new):
        raise Mixed("names an axis twice")
    old = [axis for axis in range(rank) if axis not in new]
    dims: list[Size | None] = [ONE] * rank
    for place, size in zip(old, tensor.shape, strict=True):
        dims[place] = size
    return _moved(tensor, tuple(dims), old)


@rule("Squeeze 1 11 13 21 23 24 25", tolerant=True, numbered=True, reads=(1,))
def squeeze(node: Node) -> Tensor:
    """Remove axes of size 1. They must be named, because N may also be 1."""
    tensor = node.tensor(0)
    given = node.integers_of("axes", 1)
    if given is None:
        if tensor.state.is_none and all(size.constant is not None for size in tensor.sizes):
            given = [axis for axis, size in enumerate(tensor.sizes) if size == ONE]
        else:
            raise Mixed("removes every axis of size 1, the rows' axis of a single row, too")
    gone = axes_of(given, tensor.rank)
    if tensor.state.has_axis and tensor.state.axis in gone:
        raise Mixed("removes the rows' axis")
    kept = [axis for axis in range(tensor.rank) if axis not in gone]
    places = {axis: place for place, axis in enumerate(kept)}
    dims = tuple(tensor.shape[axis] for axis in kept)
    return _moved(tensor, dims, [places.get(axis, 0) for axis in range(tensor.rank)])


def _moved(tensor: Tensor, dims: Dims, places: Sequence[int]) -> Tensor:
    """Return the tensor with new sizes; axis k becomes axis places[k]."""
    state = tensor.state
    if state.kind == "index" and dims[-1] != tensor.shape[-1]:
        state = _not_an_index(state)
    if state.has_axis:
        state = state.at(places[state.axis])
    return tensor.with_(state=state, dims=dims, numbers=None, constant=None)


def _not_an_index(state: State) -> State:
    if state.kind == "index":
        raise Mixed("uses the position of a row as data")
    return state


@rule("Flatten 1 9 11 13 21 23 24 25", padded=True)
def flatten(node: Node) -> Tensor:
    """Merge into two axes: those before `axis` and the others."""
    tensor = node.tensor(0)
    axis = node.get("axis", 1)
    if tensor.state.kind == "padded":
        return _flat_words(tensor, axis == 1)
    axis = tensor.rank if axis == tensor.rank else axis_of(axis, tensor.rank)
    target = (product(tensor.sizes[:axis]), product(tensor.sizes[axis:]))
    return reshaped(tensor, target)


def _flat_words(tensor: Tensor, fits: bool) -> Tensor:
    """Return padded rows as [rows, words]; raises Mixed if they are cut elsewhere."""
    if not fits or any(size != ONE for size in tensor.shape[1:-1]):
        raise Mixed("cuts rows that are padded to the longest")
    return tensor.with_(dims=(tensor.shape[0], None))


@rule("Reshape 5 13 14 19 21 23 24 25", tolerant=True, numbered=True, padded=True, reads=(1,))
def reshape(node: Node) -> Tensor:
    """Return the same elements in the same order with other axes."""
    tensor = node.tensor(0)
    asked = node.elements(1)
    if tensor.state.kind == "padded":
        copied = asked[0] == N or (asked[0] == ZERO and not node.flag("allowzero", 0))
        return _flat_words(tensor, copied and [size.constant for size in asked[1:]] == [-1])
    if tensor.state.is_mixed and (tensor.dims is None or None in tensor.dims):
        return Tensor(tensor.state, _plain_dims(asked))
    target = _target(node, tensor, asked)
    if tensor.state.is_mixed:
        return Tensor(tensor.state, target)
    if node.must_run:
        _must_fit(tensor, target)
    return reshaped(tensor, target)


def _plain_dims(asked: Sequence[Size]) -> Dims:
    return tuple(size if at_least(size, 1) else None for size in asked)


def _target(node: Node, tensor: Tensor, asked: Sequence[Size]) -> tuple[Size, ...]:
    """Return the sizes after a Reshape: 0 copies a size unless `allowzero`, -1 is computed."""
    copies = not node.flag("allowzero", 0)
    target: list[Size | None] = []
    for place, size in enumerate(asked):
        if size.constant == -1:
            target.append(None)
        elif at_least(size, 1) or (size.constant == 0 and not copies):
            target.append(size)
        elif size.constant == 0:
            target.append(tensor.size(place))
        else:
            target.append(_perhaps_zero(node, tensor, size, place, copies))
    if target.count(None) > 1:
        raise Mixed("has more than one -1 in its shape")
    if None in target:
        known = product(size for size in target if size is not None)
        target[target.index(None)] = _rest(node, tensor, known)
    return tuple(size for size in target if size is not None)


def _perhaps_zero(node: Node, tensor: Tensor, size: Size, place: int, copies: bool) -> Size:
    """Return a size that may be 0; if it is, the input's size is copied."""
    if at_least(size, 0):
        if not copies or (place < tensor.rank and tensor.shape[place] == size):
            return size
        if place < tensor.rank and not tensor.size(place).has_rows and not size.has_rows:
            return node.symbols.derived(("copied", size, tensor.size(place)))
    if tensor.state.is_none and not size.has_rows:
        return node.symbols.fresh("reshaped")
    raise Mixed("takes a size that may be 0 or -1")


def _rest(node: Node, tensor: Tensor, known: Size) -> Size:
    total = product(tensor.sizes)
    exact = total.divided(known)
    if exact is not None:
        return exact
    if not total.has_rows and not known.has_rows:
        return node.symbols.derived(("rest", total, known), 0, (total,))
    raise Mixed("merges the rows' axis with other axes, or splits it")


def _must_fit(tensor: Tensor, target: Sequence[Size]) -> None:
    """Raise Fixed if the run can succeed for only one value of a symbol.

    Both sides have the same number of elements: a common factor that is never 0 cancels.
    """
    left, right = product(tensor.sizes), product(target)
    if left == right:
        return
    for symbol in sorted(left.symbols, key=lambda symbol: symbol.order):
        if not symbol.is_input or symbol in right.symbols:
            continue
        size = Size.symbol(symbol)
        others = left.divided(size)
        if others is None or not at_least(others, 1):
            continue
        value = right.divided(others)
        if value is not None and value.constant is not None and value.constant >= 1:
            raise Fixed(size, value.constant)


def reshaped(tensor: Tensor, target: tuple[Size, ...]) -> Tensor:
    """Return the tensor with new sizes; raises Mixed if rows would share an axis with other data.

    In memory order, the element of row r is at (o * N + r) * inner + i. The new row axis is the one
    whose size has the factor N; the sizes before it must divide o's count, those after it i's.
    """
    state = _not_an_index(tensor.state)
    if not state.has_axis:
        if any(size.has_rows for size in target):
            raise Mixed("gives a tensor without rows the number of rows as a size")
        return tensor.with_(dims=target, numbers=None, constant=None)
    outer = product(tensor.sizes[: state.axis]) * state.outer
    inner = product(tensor.sizes[state.axis + 1 :]) * state.inner
    found = [place for place, size in enumerate(target) if size.has_rows]
    if len(found) != 1:
        raise Mixed("merges the rows' axis with other axes, or splits it")
    place = found[0]
    before, behind = product(target[:place]), product(target[place + 1 :])
    new_outer, new_inner = outer.divided(before), inner.divided(behind)
    if new_outer is None or new_inner is None:
        raise Mixed("merges the rows' axis with other axes, or splits it")
    new = state.at(place, new_outer, new_inner)
    if new.size != target[place]:
        raise Mixed("merges the rows' axis with other axes, or splits it")
    return tensor.with_(state=new, dims=target, numbers=None, constant=None)


@rule("Expand 8 13", tolerant=True, numbered=True, reads=(1,))
def expand(node: Node) -> Tensor:
    """Broadcast to a shape; a tensor without rows may get N copies, one for each row."""
    tensor = node.tensor(0)
    asked = node.elements(1)
    rank = max(tensor.rank, len(asked))
    shape = (ONE,) * (rank - tensor.rank) + tensor.shape
    asked = [ONE] * (rank - len(asked)) + asked
    state = tensor.state
    if state.has_axis:
        state = state.at(state.axis + rank - tensor.rank)
        if state.kind == "index" and asked[-1] not in (ONE, shape[-1]):
            raise Mixed("uses the position of a row as data")
    dims = tuple(_expanded(node, old, new, state) for old, new in zip(shape, asked, strict=True))
    if state.is_none:
        state = expanded_state(shape, dims)
    return tensor.with_(state=state, dims=dims, numbers=None, constant=None)


def _expanded(node: Node, old: Size | None, new: Size, state: State) -> Size | None:
    if old == new or new == ONE:
        return old
    if old == ONE:
        return new if at_least(new, 1) or new.has_rows else node.symbols.derived(("sized", new))
    if old is None or old.has_rows or new.has_rows:
        if state.is_mixed:
            return None
        raise Mixed("joins the number of rows with another size")
    return meet(old, new, node.symbols)


def expanded_state(old: Dims, new: Dims) -> State:
    """Return the state of a tensor without rows, one axis of which grew from 1 to N * inner."""
    found = [axis for axis, size in enumerate(new) if size is not None and size.has_rows]
    if not found:
        return NONE
    size = new[found[0]]
    if len(found) > 1 or size is None or old[found[0]] != ONE:
        raise Mixed("gives the number of rows to several axes, or to an axis with other data")
    return rows(found[0], ONE, per_row(size))


def per_row(size: Size) -> Size:
    """Return the number of places per row on an axis of this size, which must be N * places."""
    inner = size.divided(N)
    if inner is None or inner.has_rows or not at_least(inner, 1):
        raise Mixed(f"makes an axis of {size} places of the number of rows")
    return inner


@rule("ConstantOfShape 9 20 21 23 24 25", reads=(0,))
def constant_of_shape(node: Node) -> Tensor:
    """Return a tensor with one value everywhere: the same for each row."""
    asked = node.elements(0)
    dims = tuple(
        size if at_least(size, 0) else node.symbols.derived(("sized", size)) for size in asked
    )
    found = [axis for axis, size in enumerate(dims) if size.has_rows]
    if not found:
        return Tensor(NONE, dims)
    if len(found) > 1:
        raise Mixed("gives the number of rows to several axes")
    return Tensor(rows(found[0], ONE, per_row(dims[found[0]])), dims)


@rule("Range 11", reads=(0, 1, 2))
def count(node: Node) -> Tensor:
    """Return consecutive integers: Range(0, N * s, 1) numbers the places of rows with s places."""
    start, limit, step = (_scalar(node, position) for position in range(3))
    if start is None or limit is None or step is None or step != ONE:
        node.without_rows(0, 1, 2)
        return Tensor(NONE, (node.symbols.fresh("range"),))
    length = limit - start
    if length.has_rows:
        scale = per_row(length)
        if start.constant != 0:
            raise Mixed("numbers the rows from a start other than 0")
        return Tensor(State("number", scale=scale, inner=scale, below=scale), (length,))
    if start.has_rows or limit.has_rows:
        raise Mixed("uses the number of rows as data")
    if not at_least(length, 0):
        length = node.symbols.derived(("range", length))
    return Tensor(NONE, (length,), below=limit if at_least(start, 0) else None)


def _scalar(node: Node, position: int) -> Size | None:
    """Return an integer scalar, None if its value is not tracked."""
    tensor = node.tensor(position)
    if tensor.numbers is None:
        return None
    found = node.elements(position)
    return found[0] if len(found) == 1 else None


@rule("Tile 6 13", tolerant=True, reads=(1,))
def tile(node: Node) -> Tensor:
    """Repeat along axes: for the row axis, this multiplies the outer places."""
    tensor = node.tensor(0)
    repeats = node.elements(1)
    if len(repeats) != tensor.rank:
        raise Mixed("has repeats that do not fit its input")
    dims: list[Size | None] = []
    for size, repeat in zip(tensor.shape, repeats, strict=True):
        if not at_least(repeat, 0) and not tensor.state.is_mixed:
            repeat = node.symbols.derived(("sized", repeat))
        dims.append(None if size is None else _times(size, repeat))
    state = tensor.state
    if state.has_axis:
        state = state.at(state.axis, state.outer * repeats[state.axis])
    elif state.is_none:
        state = _tiled(tensor, repeats)
    return Tensor(state, tuple(dims))


def _times(size: Size, repeat: Size) -> Size | None:
    try:
        return size * repeat
    except Unknown:
        return None


def _tiled(tensor: Tensor, repeats: Sequence[Size]) -> State:
    found = [axis for axis, size in enumerate(repeats) if size.has_rows]
    if not found:
        return NONE
    if len(found) > 1:
        raise Mixed("gives the number of rows to several axes")
    # Copy o * N + r of the whole axis, for N * q copies with q before or after N: both are valid.
    return rows(found[0], per_row(repeats[found[0]]), tensor.size(found[0]))
