"""Tracks small integer tensors number by number: shapes, and what graphs compute from them.

A number is a Size, or None if it is unknown and may depend on the rows. Numbers may contain N: the
number of rows may become part of a shape, but must not be used as data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from onnx import TensorProto, numpy_helper

from runtime_image.verification.rows.arithmetic import (
    ELEMENTS_MAX,
    Pair,
    TooMany,
    add,
    both,
    chosen,
    divide,
    each,
    either,
    is_equal,
    is_less,
    is_less_or_equal,
    is_not,
    maximum,
    minimum,
    multiply,
    narrowed,
    paired,
    remainder,
    subtract,
)
from runtime_image.verification.rows.constants import constant, from_array, to_numbers
from runtime_image.verification.rows.node import Node, axes_of, axis_of
from runtime_image.verification.rows.sizes import (
    ENDLESS,
    ONE,
    ZERO,
    Size,
    Unknown,
    at_least,
    never_more,
    product,
)
from runtime_image.verification.rows.states import NONE, Tensor, mixed

_Evaluator = Callable[[Node, list[Any]], Any]
_Source = Callable[[Node], Tensor]


_PAIRED: Final[set[str]] = set()
"""Operators whose inputs have the same type."""
EVALUATORS: Final[dict[tuple[str, int], _Evaluator]] = {}
SOURCES: Final[dict[tuple[str, int], _Source]] = {}


def evaluate(node: Node) -> list[Tensor] | None:
    """Return the node's outputs number by number; None if its rule must decide."""
    if node.domain:
        return None
    source = SOURCES.get((node.operator, node.since))
    if source is not None:
        return [source(node)]
    evaluator = EVALUATORS.get((node.operator, node.since))
    if evaluator is None or not _is_numbered(node):
        return None
    arrays = [_numbers_of(node, position) for position in range(len(node.inputs))]
    try:
        found = None if _unfit(node, arrays) else evaluator(node, arrays)
    except TooMany:
        return None
    if found is None:
        return None
    # NumPy returns the bare number for an array of rank 0.
    parts = [np.asarray(part, object) for part in (found if isinstance(found, list) else [found])]
    if any(part.size > ELEMENTS_MAX for part in parts):
        return None
    to = node.get("to") if node.operator == "Cast" else None
    if to == TensorProto.INT32 or any(tensor.is_narrow for tensor in node.given):
        parts = [each(partial(narrowed, node.symbols), part) for part in parts]
        narrow = to != TensorProto.INT64
        return [numbered(part).with_(is_narrow=narrow) for part in parts]
    return [numbered(part) for part in parts]


def _is_numbered(node: Node) -> bool:
    """Whether the output's elements are numbers, and therefore integers.

    If an operator's inputs have different types, only those that determine the output's type count.
    """
    anchors: Sequence[int] = (0,)
    if node.operator == "Where":
        anchors = (1, 2)
    elif node.operator == "Concat" or node.operator in _PAIRED:
        anchors = range(len(node.inputs))
    given = (node.inputs[place] for place in anchors if node.has(place))
    return any(tensor is not None and tensor.numbers is not None for tensor in given)


def numbered(array: Any) -> Tensor:
    """Return a tensor of these numbers; its content is data if all are known and free of N."""
    known = all(size is not None and not size.has_rows for size in array.reshape(-1))
    dims = tuple(Size.of(size) for size in array.shape)
    return Tensor(NONE if known else mixed(), dims, array, _below(array) if known else None)


def _below(array: Any) -> Size | None:
    """Return a bound above all elements, None if one may be negative or there is no bound."""
    highest = ZERO
    for size in array.reshape(-1):
        if not at_least(size, 0):
            return None
        if never_more(highest, size):
            highest = size
        elif not never_more(size, highest):
            return None
    return highest + ONE


def _unfit(node: Node, arrays: Sequence[Any]) -> bool:
    return any(
        tensor is not None and array is None
        for tensor, array in zip(node.inputs, arrays, strict=True)
    )


def _numbers_of(node: Node, position: int) -> Any:
    tensor = node.inputs[position]
    if tensor is None or tensor.numbers is not None:
        return None if tensor is None else tensor.numbers
    if not tensor.state.is_none or any(size.constant is None for size in tensor.sizes):
        return None
    shape = tuple(size.constant or 0 for size in tensor.sizes)
    if math.prod(shape) > 64:
        return None
    found = np.empty(shape, dtype=object)
    for index in np.ndindex(*shape):
        found[index] = node.symbols.fresh("element", None)
    return found


def _evaluates(*operators: str) -> Callable[[_Evaluator], _Evaluator]:
    def register(function: _Evaluator) -> _Evaluator:
        for name, *versions in (operator.split() for operator in operators):
            for version in versions:
                EVALUATORS[name, int(version)] = function
        return function

    return register


def _source(*operators: str) -> Callable[[_Source], _Source]:
    def register(function: _Source) -> _Source:
        for name, *versions in (operator.split() for operator in operators):
            for version in versions:
                SOURCES[name, int(version)] = function
        return function

    return register


@_source("Shape 1 13 15 19 21 23 24 25")
def _shape(node: Node) -> Tensor:
    tensor = node.tensor(0)
    if tensor.dims is None:
        return Tensor(tensor.state)
    dims = tensor.dims[node.get("start", 0) : node.get("end", len(tensor.dims))]
    found = np.empty(len(dims), dtype=object)
    found[:] = dims
    result = numbered(found)
    if None in dims and tensor.state.culprit is not None:
        return result.with_(state=mixed(tensor.state.culprit))
    return result


@_source("Size 1 13 19 21 23 24 25")
def _size(node: Node) -> Tensor:
    tensor = node.tensor(0)
    if tensor.dims is None:
        return Tensor(tensor.state)
    found = np.empty((), dtype=object)
    known = [size for size in tensor.dims if size is not None]
    found[()] = _or_none(product, known) if len(known) == len(tensor.dims) else None
    return numbered(found)


@_source("Constant 1 9 11 12 13 19 21 23 24 25")
def _constant(node: Node) -> Tensor:
    if "value" in node.attributes:
        return constant(node.attributes["value"])
    if "sparse_value" in node.attributes:
        return Tensor(NONE, tuple(Size.of(n) for n in node.attributes["sparse_value"].dims))
    for name in ("value_int", "value_ints", "value_float", "value_floats"):
        if name in node.attributes:
            integer = name in ("value_int", "value_ints")
            array = np.asarray(node.attributes[name], np.int64 if integer else np.float32)
            return from_array(array, tuple(Size.of(n) for n in array.shape), integer)
    strings = node.attributes.get("value_strings")
    array = np.asarray(strings if strings is not None else node.get("value_string"), dtype=object)
    return from_array(array, tuple(Size.of(n) for n in array.shape), False)


@_evaluates("ConstantOfShape 9 20 21 23 24 25")
def _constant_of_shape(node: Node, arrays: list[Any]) -> Any:
    sizes = [size.constant if size is not None else None for size in arrays[0].reshape(-1)]
    value = node.get("value")
    if value is None or value.data_type not in (TensorProto.INT64, TensorProto.INT32):
        return None
    if any(size is None or size < 0 for size in sizes):
        return None
    known = [size for size in sizes if size is not None]
    if math.prod(known) > ELEMENTS_MAX:
        return None
    number = numpy_helper.to_array(value).reshape(-1)[0]
    return np.full(known, Size.of(int(number)), dtype=object)


@_evaluates("Cast 1 6 9 13 19 21 23 24 25")
def _cast(node: Node, arrays: list[Any]) -> Any:
    if node.get("to") in (TensorProto.INT64, TensorProto.INT32):
        return arrays[0]
    if node.get("to") == TensorProto.BOOL:
        return each(partial(is_not, node.symbols), arrays[0], ZERO)
    return None


@_evaluates("Identity 1 13 14 16 19 21 23 24 25")
def _identity(_node: Node, arrays: list[Any]) -> Any:
    return arrays[0]


@_evaluates("Gather 1 11 13")
def _gather(node: Node, arrays: list[Any]) -> Any:
    indices = _constants(arrays[1])
    axis = axis_of(node.get("axis", 0), arrays[0].ndim)
    if indices is None:
        return None
    count = arrays[0].shape[axis]
    if indices.size and not (-count <= indices.min() and indices.max() < count):
        return None
    return np.take(arrays[0], indices, axis)


@_evaluates("Concat 4 11 13")
def _concat(node: Node, arrays: list[Any]) -> Any:
    return np.concatenate(arrays, axis_of(node.get("axis", 0), arrays[0].ndim))


@_evaluates("Split 2 11 13 18")
def _split(node: Node, arrays: list[Any]) -> Any:
    if node.get("num_outputs", len(node.used)) != len(node.used):
        return None
    axis = axis_of(node.get("axis", 0), arrays[0].ndim)
    lengths = node.integers_of("split", 1)
    if lengths is None:
        width = -(-arrays[0].shape[axis] // len(node.used))
        lengths = [width] * len(node.used)
    return np.split(arrays[0], np.cumsum(lengths)[:-1], axis)


@_evaluates("Squeeze 1 11 13 21 23 24 25")
def _squeeze(node: Node, arrays: list[Any]) -> Any:
    axes = node.integers_of("axes", 1)
    return np.squeeze(arrays[0], None if axes is None else tuple(axes))


@_evaluates("Unsqueeze 1 11 13 21 23 24 25")
def _unsqueeze(node: Node, arrays: list[Any]) -> Any:
    axes = node.integers_of("axes", 1) or []
    rank = arrays[0].ndim + len(axes)
    return np.expand_dims(arrays[0], tuple(axes_of(axes, rank)))


@_evaluates("Reshape 5 13 14 19 21 23 24 25")
def _reshape(node: Node, arrays: list[Any]) -> Any:
    shape = _constants(arrays[1])
    if shape is None or node.flag("allowzero", 0) or 0 in shape:
        return None
    return arrays[0].reshape(shape)


@_evaluates("Transpose 1 13 21 23 24 25")
def _transpose(node: Node, arrays: list[Any]) -> Any:
    return np.transpose(arrays[0], node.get("perm"))


@_evaluates("Expand 8 13")
def _expand(_node: Node, arrays: list[Any]) -> Any:
    shape = _constants(arrays[1])
    if shape is None or math.prod(shape) > ELEMENTS_MAX:
        return None
    return np.broadcast_to(arrays[0], np.broadcast_shapes(arrays[0].shape, tuple(shape)))


@_evaluates("Slice 10 11 13")
def _slice(node: Node, arrays: list[Any]) -> Any:
    given = [_constants(arrays[place]) if node.has(place) else None for place in range(1, 5)]
    starts, ends, axes, steps = (*given, None, None, None, None)[:4]
    if (
        starts is None
        or ends is None
        or any(
            node.has(place) and found is None
            for place, found in zip((3, 4), (axes, steps), strict=True)
        )
    ):
        return None
    places = range(len(starts)) if axes is None else axes_of(list(axes), arrays[0].ndim)
    result = arrays[0]
    for index, axis in enumerate(places):
        step = 1 if steps is None else int(steps[index])
        cut = python_slice(int(starts[index]), int(ends[index]), step, arrays[0].shape[axis])
        result = result[(slice(None),) * axis + (cut,)]
    return result


@_evaluates("Slice 1")
def _slice_by_attributes(node: Node, arrays: list[Any]) -> Any:
    starts, ends = node.get("starts"), node.get("ends")
    result = arrays[0]
    for index, axis in enumerate(axes_of(node.get("axes", range(len(starts))), result.ndim)):
        cut = python_slice(starts[index], ends[index], 1, arrays[0].shape[axis])
        result = result[(slice(None),) * axis + (cut,)]
    return result


def python_slice(start: int, end: int, step: int, size: int) -> slice:
    """ONNX's slice as Python's: with a negative step an end before the first element is no end."""
    if step < 0 and end < -size:
        return slice(start, None, step)
    return slice(start, end, step)


@_evaluates("Range 11")
def _range(_node: Node, arrays: list[Any]) -> Any:
    found = [_constants(array) for array in arrays]
    if any(array is None or array.size != 1 for array in found):
        return None
    start, limit, step = (int(array.reshape(-1)[0]) for array in found if array is not None)
    if step == 0 or abs(limit - start) // abs(step) > ELEMENTS_MAX:
        return None
    return to_numbers(np.arange(start, limit, step))


def _reduces(operator: str, versions: str, step: Pair, start: Size | None) -> None:
    def evaluator(node: Node, arrays: list[Any]) -> Any:
        axes = node.integers_of("axes", 1)
        if not axes and node.flag("noop_with_empty_axes", 0):
            return None
        rank = arrays[0].ndim
        if axes and sorted(axes_of(axes, rank)) != list(range(rank)):
            return None
        result = start
        for size in arrays[0].reshape(-1):
            result = size if result is None else paired(step, node.symbols, result, size)
            if result is None:
                break
        found = np.empty((1,) * rank if node.flag("keepdims", 1) else (), dtype=object)
        found[...] = result
        return found

    _evaluates(f"{operator} {versions}")(evaluator)


def _pairs(operators: str, step: Pair) -> None:
    """Register an elementwise operator of two inputs, or of more, folded from the left."""

    def evaluator(node: Node, arrays: list[Any]) -> Any:
        function = partial(paired, step, node.symbols)
        result = arrays[0]
        for array in arrays[1:]:
            result = each(function, result, array)
        return result

    _evaluates(operators)(evaluator)
    _PAIRED.add(operators.split()[0])


_pairs("Add 7 13 14", add)
_pairs("Sub 7 13 14", subtract)
_pairs("Mul 7 13 14", multiply)
_pairs("Div 7 13 14", divide)
_pairs("Min 8 12 13", minimum)
_pairs("Max 8 12 13", maximum)
_pairs("Equal 7 11 13 19", is_equal)
_pairs("Less 7 9 13", is_less)
_pairs("Greater 7 9 13", lambda symbols, left, right: is_less(symbols, right, left))
_pairs("LessOrEqual 12 16", is_less_or_equal)
_pairs("GreaterOrEqual 12 16", lambda s, left, right: is_less_or_equal(s, right, left))
_pairs("And 7", both)
_pairs("Or 7", either)
_reduces("ReduceProd", "1 11 13 18", multiply, ONE)
_reduces("ReduceSum", "1 11 13", add, ZERO)
_reduces("ReduceMax", "1 11 12 13 18 20", maximum, None)
_reduces("ReduceMin", "1 11 12 13 18 20", minimum, None)


@_evaluates("Mod 10 13")
def _mod(node: Node, arrays: list[Any]) -> Any:
    return each(partial(paired, remainder, node.symbols), *arrays)


@_evaluates("Not 1")
def _not(_node: Node, arrays: list[Any]) -> Any:
    return each(lambda size: None if size is None else ONE - size, arrays[0])


@_evaluates("Neg 6 13")
def _negative(_node: Node, arrays: list[Any]) -> Any:
    return each(lambda size: None if size is None else -size, arrays[0])


@_evaluates("Where 9 16")
def _where(node: Node, arrays: list[Any]) -> Any:
    return each(partial(chosen, node.symbols), *arrays)


def _or_none(function: Callable[[Sequence[Size]], Size], sizes: Sequence[Size]) -> Size | None:
    try:
        return function(sizes)
    except Unknown:
        return None


def _constants(array: Any) -> Any:
    """Return the numbers as a NumPy array clipped to 64 bits, None if one is not constant."""
    numbers = [size.constant if size is not None else None for size in array.reshape(-1)]
    if any(number is None for number in numbers):
        return None
    clipped = [max(-(2**63), min(2**63 - 1, number)) for number in numbers if number is not None]
    return np.array(clipped, dtype=np.int64).reshape(array.shape)


def is_endless(size: Size) -> bool:
    """Whether a slice's end means "to the end"."""
    return size.constant is not None and size.constant >= ENDLESS


def is_false(tensor: Tensor) -> bool:
    """Whether a tensor holds truth values that are all provably false."""
    return tensor.numbers is not None and all(size == ZERO for size in tensor.numbers.reshape(-1))
