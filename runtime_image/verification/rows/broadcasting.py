"""NumPy broadcasting of tensors with rows."""

from __future__ import annotations

from collections.abc import Sequence

from runtime_image.verification.rows.sizes import (
    ONE,
    Size,
    Symbols,
    Unknown,
    at_least,
    lower,
    never_more,
)
from runtime_image.verification.rows.states import NONE, Dims, Mixed, Tensor, rows


def meet(left: Size, right: Size, symbols: Symbols) -> Size:
    """Return the broadcast of two sizes that do not depend on N. Raises Unknown if one does.

    In any run, they are equal, or one is 1, or the run fails.
    """
    if left == right or right == ONE:
        return left
    if left == ONE:
        return right
    for one, other in ((left, right), (right, left)):
        if one.constant is not None and one.constant > 1:
            return one
        # 1 <= one <= other and they broadcast: they are equal, or `one` is 1. So it is `other`.
        if at_least(one, 1) and never_more(one, other):
            return other
    first, second = sorted((left, right), key=repr)
    lows = [lower(left), lower(right)]
    low = min((number for number in lows if number is not None), default=0)
    return symbols.derived(("meet", first, second), max(0, low) if None not in lows else 0)


def joined_dims(shapes: Sequence[Dims], symbols: Symbols) -> Dims:
    """Return the sizes of a broadcast, None for unknown ones."""
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Size | None] = []
    for axis in range(rank):
        found: Size | None = ONE
        for shape in shapes:
            at = axis - rank + len(shape)
            if at >= 0:
                found = _joined_size(found, shape[at], symbols)
        result.append(found)
    return tuple(result)


def _joined_size(left: Size | None, right: Size | None, symbols: Symbols) -> Size | None:
    if left is None or right is None:
        return None
    if left == right or right == ONE:
        return left
    if left == ONE:
        return right
    if left.has_rows or right.has_rows:
        return None
    try:
        return meet(left, right, symbols)
    except Unknown:
        return None


def aligned(tensors: Sequence[Tensor], symbols: Symbols, keep: int = 0) -> Tensor:
    """Return the broadcast of tensors, with rows on the axis where all row axes meet.

    The last `keep` axes are left out. Tensors without rows must have size 1 on the row axis, or
    lack the axis. Raises Mixed otherwise. If one of the tensors is mixed, so is the result.
    """
    shapes = [_head(tensor.shape, keep) for tensor in tensors]
    dims = joined_dims(shapes, symbols)
    for tensor in tensors:
        if tensor.state.is_mixed:
            return Tensor(tensor.state, dims)
    rank = len(dims)
    where: tuple[int, Size, Size] | None = None
    for tensor, shape in zip(tensors, shapes, strict=True):
        state = tensor.state
        if not state.has_axis:
            continue
        if state.axis >= len(shape):
            raise Mixed("has rows on an axis that is contracted")
        place = (state.axis + rank - len(shape), *state.factors)
        if where is not None and place != where:
            raise Mixed("combines rows on different axes")
        where = place
    if where is None:
        return Tensor(NONE, dims)
    _check_others(tensors, shapes, where[0] - rank)
    return Tensor(rows(*where), dims)


def _head(shape: Dims, keep: int) -> Dims:
    return shape[: max(0, len(shape) - keep)]


def _check_others(tensors: Sequence[Tensor], shapes: Sequence[Dims], axis: int) -> None:
    """Raise Mixed if a tensor without rows has a size other than 1 on `axis`, counted from the
    end."""
    for tensor, shape in zip(tensors, shapes, strict=True):
        if tensor.state.is_none and len(shape) >= -axis and shape[axis] != ONE:
            raise Mixed(f"combines rows with an axis of size {shape[axis]} that has no rows")
