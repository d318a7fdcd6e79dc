"""Element types, by their Open Inference Protocol names.

Source: KServe Open Inference Protocol, "Tensor Data Types". BYTES stands for strings and byte
strings; its binary form is a 4-byte little-endian length before each element.
"""

from typing import Final

BYTES: Final = "BYTES"

ITEM_SIZE: Final[dict[str, int]] = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}
"""Bytes per element of the fixed-size types; BYTES is not among them."""

ALL: Final = frozenset(ITEM_SIZE) | {BYTES}
SERVED: Final = ALL - {"BF16"}
"""Types that inputs and outputs of handlers may have: NumPy has no BF16."""
FLOATS: Final = frozenset({"FP16", "BF16", "FP32", "FP64"})
INTEGER_RANGE: Final[dict[str, tuple[int, int]]] = {
    **{f"UINT{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
}
"""Smallest and largest value of each integer type."""

FROM_ONNX: Final[dict[str, str]] = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(bfloat16)": "BF16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": BYTES,
}
"""ONNX Runtime's type names for inputs and outputs of a graph."""

FROM_NPY: Final[dict[str, str]] = {
    "|b1": "BOOL",
    "|u1": "UINT8",
    "<u2": "UINT16",
    "<u4": "UINT32",
    "<u8": "UINT64",
    "|i1": "INT8",
    "<i2": "INT16",
    "<i4": "INT32",
    "<i8": "INT64",
    "<f2": "FP16",
    "<f4": "FP32",
    "<f8": "FP64",
}
"""NumPy's `descr` strings that an npy body may carry: little-endian, no objects."""
