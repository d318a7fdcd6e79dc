"""BF16 in NumPy, which has no such type: arrays of its bits. Only replicas import this.

Such an array can be cut, joined and compared for equality, but has no arithmetic.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

NAME: Final = "BF16"
BF16: Final = np.dtype([("bf16", "<u2")])
"""The bits of one element. A type of its own, so that nothing takes them for integers."""


def bits(array: NDArray[Any]) -> NDArray[np.uint16]:
    """Return the bits of an array of BF16, in row-major order and without a copy if possible."""
    found: NDArray[np.uint16] = np.ascontiguousarray(array).view(np.uint16).reshape(array.shape)
    return found


def from_bits(values: NDArray[np.uint16]) -> NDArray[Any]:
    """Return an array of BF16 with these bits."""
    return np.ascontiguousarray(values).view(BF16).reshape(values.shape)


def widened(array: NDArray[Any]) -> NDArray[np.float32]:
    """Return the same numbers as FP32, whose upper half BF16 is."""
    return (bits(array).astype(np.uint32) << 16).view(np.float32)
