"""Tensors of a graph that are constants."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from onnx import TensorProto, numpy_helper

from runtime_image.verification.rows.sizes import ZERO, Size
from runtime_image.verification.rows.states import NONE, Tensor

NUMBERS_MAX: Final = 4096
"""Elements of integer tensors whose numbers are followed one by one."""
INTEGERS: Final = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL})


def constant(proto: TensorProto) -> Tensor:
    """What is known of an initialiser or of a Constant's value. Its data may have been left out."""
    dims = tuple(Size.of(size) for size in proto.dims)
    return from_array(_array(proto), dims, proto.data_type in INTEGERS)


def from_array(array: Any, dims: tuple[Size, ...], integer: bool) -> Tensor:
    """A constant with these elements; None where they are not at hand."""
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
    """An array of integers as an array of constant sizes."""
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
        return None  # left out when the file was read, or damaged: the content is not known
