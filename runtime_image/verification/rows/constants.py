"""Constant tensors of a graph."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from onnx import TensorProto, numpy_helper

from runtime_image.verification.rows.sizes import ZERO, Size
from runtime_image.verification.rows.states import NONE, Tensor

NUMBERS_MAX: Final = 4096
"""Max elements of integer tensors whose numbers are tracked individually."""
INTEGERS: Final = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL})


def constant(proto: TensorProto) -> Tensor:
    """Return an initialiser or Constant as a tensor. Its data may have been left out."""
    dims = tuple(Size.of(size) for size in proto.dims)
    return from_array(_array(proto), dims, proto.data_type in INTEGERS)


def from_array(array: Any, dims: tuple[Size, ...], integer: bool) -> Tensor:
    """Return a constant with these elements; `array` is None if they are not available."""
    if array is None:
        return Tensor(NONE, dims)
    if not integer:
        return Tensor(NONE, dims, constant=array if array.size <= NUMBERS_MAX else None)
    below = None
    if array.size and int(array.min()) >= 0:
        below = Size.of(int(array.max()) + 1) if int(array.max()) < 2**62 else None
    numbers = to_numbers(array) if array.size <= NUMBERS_MAX else None
    return Tensor(NONE, dims, numbers, below)


def to_numbers(array: Any) -> Any:
    """Convert an integer array to an array of constant sizes."""
    found = np.empty(array.shape, dtype=object)
    for index, number in np.ndenumerate(array):
        found[index] = Size.of(int(number)) if number else ZERO
    return found


def _array(proto: TensorProto) -> Any:
    if proto.data_location == TensorProto.EXTERNAL or proto.HasField("segment"):
        return None
    try:
        return numpy_helper.to_array(proto)
    except (ValueError, TypeError, KeyError, OverflowError):
        return None  # data left out by `reading`, or damaged: the content is unknown
