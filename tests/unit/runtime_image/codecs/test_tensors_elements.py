"""JSON lists are read strictly: element types, ranges, lengths, no ragged lists."""

from typing import Any

import msgspec
import pytest

from runtime_image.codecs import tensors
from runtime_image.contract import dtypes
from runtime_image.contract.errors import RequestError
from runtime_image.contract.signature import TensorSpec


def read(dtype: str, shape: tuple[int, ...], text: str) -> tuple[Any, tuple[int, ...]]:
    return tensors.read(TensorSpec("x", dtype, shape), msgspec.Raw(text.encode()))


@pytest.mark.parametrize(
    ("dtype", "shape", "text", "value", "found"),
    [
        ("FP32", (-1, 2), "[[1, 2.5]]", [[1.0, 2.5]], (1, 2)),
        ("FP64", (), "1e300", 1e300, ()),
        ("FP16", (1,), "[65504]", [65504.0], (1,)),
        ("BOOL", (-1,), "[true, false]", [True, False], (2,)),
        ("BYTES", (-1, -1), '[["a"], ["b"]]', [["a"], ["b"]], (2, 1)),
        ("UINT64", (-1,), f"[{2**64 - 1}]", [2**64 - 1], (1,)),
        ("INT64", (-1,), f"[{-(2**63)}]", [-(2**63)], (1,)),
    ],
)
def test_fitting_lists_are_read(
    dtype: str, shape: tuple[int, ...], text: str, value: Any, found: tuple[int, ...]
) -> None:
    """A list of the signature's type and shape gives its values and its shape."""
    assert read(dtype, shape, text) == (value, found)


@pytest.mark.parametrize(
    ("dtype", "shape", "text", "got"),
    [
        ("FP32", (-1,), "[1, true]", "a boolean at index [1]"),
        ("FP32", (-1,), '["1"]', "a string at index [0]"),
        ("FP32", (-1,), "[null]", "null at index [0]"),
        ("FP32", (-1,), "[1e39]", "out of range, at index [0]"),
        ("FP16", (-1,), "[70000]", "out of range, at index [0]"),
        ("INT32", (-1,), "[1.0]", "a number with a fraction or exponent at index [0]"),
        ("INT32", (-1,), "[true]", "a boolean at index [0]"),
        ("INT8", (-1,), "[0, 128]", "128, out of range, at index [1]"),
        ("UINT8", (-1,), "[-1]", "-1, out of range, at index [0]"),
        ("UINT64", (-1, -1), f"[[0], [{2**64}]]", str(2**64)),
        ("UINT64", (-1,), "[-1]", "-1, out of range"),
        ("INT64", (-1,), f"[{2**63}]", "out of range"),
        ("BOOL", (-1,), "[1]", "an integer at index [0]"),
        ("BYTES", (-1,), "[1]", "an integer at index [0]"),
        ("BYTES", (), "{}", "an object"),
        ("FP32", (-1, 2), "[[1, 2], [3]]", "a list of 1 at index [1]"),
        ("FP32", (-1, -1), "[[1, 2], [3]]", "lengths 2 and 1"),
        ("FP32", (-1, -1, 2, -1), "[[[[1],[2]],[[1],[2,3]]]]", "lengths 1 and 2"),
        ("FP32", (-1, 2), "[1, 2]", "an integer instead of a list at index [0]"),
        ("FP32", (-1,), "[[1]]", "a list at index [0]"),
        ("FP32", (-1,), "[]", "a list of 0"),
        ("FP32", (-1, -1), "[[]]", "a list of 0 at index [0]"),
        ("FP32", (0,), "[]", "shape [0]"),
        ("FP32", (-1,), "[1,", "truncated"),
        ("FP32", (), "[" * 100_000, "recursion"),
        ("INT64", (), "9" * 5000, "out of range"),
        ("INT64", (), "9" * 30, "out of range"),
    ],
)
def test_other_values_are_refused(dtype: str, shape: tuple[int, ...], text: str, got: str) -> None:
    """What does not fit is refused with its index, and a bomb like anything else."""
    with pytest.raises(RequestError) as caught:
        read(dtype, shape, text)
    assert caught.value.input == "x"
    assert got in caught.value.got
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("dtype", sorted(dtypes.INTEGER_RANGE))
def test_integer_bounds_are_exact(dtype: str) -> None:
    """The ends of every integer type are taken and the next numbers refused."""
    low, high = dtypes.INTEGER_RANGE[dtype]
    assert read(dtype, (2,), f"[{low}, {high}]")[0] == [low, high]
    for beyond in (low - 1, high + 1):
        with pytest.raises(RequestError):
            read(dtype, (1,), f"[{beyond}]")


def test_flat_lists_are_counted() -> None:
    """A flat list must have as many elements as the declared shape."""
    spec = TensorSpec("x", "UINT64", (-1, 2))
    assert tensors.read_flat(spec, (1, 2), msgspec.Raw(b"[1, 2]")) == [1, 2]
    with pytest.raises(RequestError, match=r"expected 4 elements for shape \[2, 2\], got 2"):
        tensors.read_flat(spec, (2, 2), msgspec.Raw(b"[1, 2]"))
    with pytest.raises(RequestError, match=str(2**64)):
        tensors.read_flat(spec, (1, 2), msgspec.Raw(f"[1, {2**64}]".encode()))
    with pytest.raises(RequestError, match="a string at index"):
        tensors.read_flat(spec, (1, 2), msgspec.Raw(b'[1, "2"]'))
