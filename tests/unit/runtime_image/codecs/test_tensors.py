"""Names, shapes, rows, lengths and JSON lists are validated; refusals name the expected and the
actual value."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np
import pytest

from runtime_image.codecs import tensors
from runtime_image.contract import dtypes
from runtime_image.contract.errors import BAD_INPUT, RequestError
from runtime_image.contract.model import InputRule
from runtime_image.contract.signature import Signature, TensorSpec

X = TensorSpec("x", "FP32", (-1, 2))
Y = TensorSpec("y", "INT64", (-1,))
SIGNATURE = Signature("tensors", (X, Y), ())


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["x", "z"], "input 'z': expected one of: x, y, got an unknown name"),
        (["yy", "x"], "got an unknown name; did you mean 'y'?"),
        (["x", "x", "y"], "input 'x': expected to be given once"),
        (["x"], "input 'y': expected INT64 of shape [-1], got nothing"),
        (["n" * 500, "x"], "..."),
    ],
)
def test_wrong_names_are_refused(names: list[str], text: str) -> None:
    """An unknown, repeated or missing name is refused; long names are cut in the error."""
    with pytest.raises(RequestError) as caught:
        tensors.check_names(names, SIGNATURE)
    assert caught.value.code == BAD_INPUT
    assert text in caught.value.message
    assert len(caught.value.message) < 400


def test_bf16_is_only_binary() -> None:
    """BF16 has no JSON form: the error says how to send it."""
    with pytest.raises(RequestError, match=r"BF16 as binary data: .*binary_data_size"):
        read("BF16", (1,), "[1]")


@pytest.mark.parametrize("shape", [(), (1,), (1, 3), (-1, 2), (0, 0), (1, 2, 1)])
def test_wrong_shapes_are_refused(shape: tuple[int, ...]) -> None:
    """Another rank, another fixed size and a negative one are refused."""
    with pytest.raises(RequestError, match=r"expected FP32 of shape \[-1, 2\], got shape"):
        tensors.check_shape(X, shape)


ANY = TensorSpec("x", "FP32", None)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("1.5", ()),
        (" [ ] ", (0,)),
        ("[1, 2]", (2,)),
        ("[[], []]", (2, 0)),
        (" [\n[ [1]],[[2]] ]", (2, 1, 1)),
        ("[" * 32 + "1" + "]" * 32, (1,) * 32),
    ],
)
def test_an_unknown_rank_is_that_of_the_value(text: str, shape: tuple[int, ...]) -> None:
    """As many axes as lists begin before the first element."""
    assert tensors.read(ANY, msgspec.Raw(text.encode()))[1] == shape


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[1], 2]", "expected FP32 of shape [-1, -1], got an integer instead of a list"),
        ("[1, [2]]", "expected FP32 of shape [-1], got a list at index [1]"),
        ("[[1], [2, 3]]", "lists of one length on axis 1"),
        ('"a"', "got a string"),
        ("{}", "got an object"),
        ("[" * 33 + "1" + "]" * 33, "expected at most 32 axes, got 33 axes"),
        ("[" * 100_000, "expected at most 32 axes, got 100000 axes"),
    ],
)
def test_ragged_and_deep_values_of_an_unknown_rank_are_refused(text: str, told: str) -> None:
    """The error names what the value's first element lets expect."""
    with pytest.raises(RequestError) as caught:
        tensors.read(ANY, msgspec.Raw(text.encode()))
    assert told in caught.value.message


def test_a_rank_has_a_limit_in_bytes_too() -> None:
    """Shapes of binary tensors have at most as many axes as lists in JSON."""
    with pytest.raises(RequestError, match="expected at most 32 axes, got 33 axes"):
        tensors.from_binary(ANY, "FP32", (1,) * 33, memoryview(bytes(4)))
    with pytest.raises(RequestError, match=r"expected FP32 of any shape, got shape \[-1\]"):
        tensors.check_shape(ANY, (-1,))


@pytest.mark.parametrize(
    ("declared", "shape", "fits"),
    [
        ((-1, -1), (0, 2**24), True),
        ((-1, -1), (0, 2**24 + 1), False),
        ((-1, -1), (0, 0), True),
        ((-1, 2**30), (0, 2**30), True),
        (None, (2**62, 0, 2**62), False),
        (None, (2**24, 0), True),
    ],
)
def test_axes_beside_an_empty_one_have_a_limit(
    declared: tuple[int, ...] | None, shape: tuple[int, ...], fits: bool
) -> None:
    """An empty tensor has no bytes, but a model may compute with its other axes. Sizes that the
    model declares do not count."""
    spec = TensorSpec("x", "FP32", declared)
    if fits:
        tensors.check_shape(spec, shape)
        return
    with pytest.raises(RequestError, match="at most 16777216 places beside an empty axis"):
        tensors.check_shape(spec, shape)


def test_rows_that_differ_are_found() -> None:
    """Inputs with a dynamic first axis that differ in rows are named; fixed axes do not count."""
    assert tensors.unequal_rows({"x": (2, 2), "y": (2,)}, SIGNATURE) is None
    found = tensors.unequal_rows({"x": (2, 2), "y": (3,)}, SIGNATURE)
    assert found is not None
    assert found.message == "input 'y': expected 2 rows like input 'x', got 3 rows"
    fixed = Signature("tensors", (X, TensorSpec("y", "INT64", (3,))), ())
    assert tensors.unequal_rows({"x": (2, 2), "y": (3,)}, fixed) is None


@pytest.mark.parametrize(
    ("shape", "text", "value", "found"),
    [
        ((-1,), "[]", [], (0,)),
        ((-1, 2), "[]", [], (0, 2)),
        ((2, -1), "[[], []]", [[], []], (2, 0)),
        ((-1, -1, 8), "[]", [], (0, 0, 8)),
        ((-1, 1, -1, 8), "[[[]]]", [[[]]], (1, 1, 0, 8)),
        ((0,), "[]", [], (0,)),
    ],
)
@pytest.mark.parametrize("dtype", ["FP32", "UINT64", "BYTES", "BOOL"])
def test_empty_axes_are_read(
    dtype: str, shape: tuple[int, ...], text: str, value: Any, found: tuple[int, ...]
) -> None:
    """An axis of any size may have the size 0, as caches at their start have."""
    assert read(dtype, shape, text) == (value, found)
    spec = TensorSpec("x", dtype, shape)
    assert tensors.read_flat(spec, found, msgspec.Raw(b"[]")) == []
    assert tensors.from_binary(spec, dtype, found, memoryview(b"")).shape == found


def test_binary_of_the_right_length_is_kept_as_a_view() -> None:
    """Raw elements are neither copied nor decoded."""
    data = memoryview(bytes(16))
    raw = tensors.from_binary(X, "FP32", (2, 2), data)
    assert raw.payload is data
    assert (raw.encoding, raw.dtype, raw.shape) == ("binary", "FP32", (2, 2))


@pytest.mark.parametrize(
    ("dtype", "shape", "size", "text"),
    [
        ("FP64", (2, 2), 32, "dtype FP64"),
        ("FP32", (2, 3), 24, r"shape \[2, 3\]"),
        ("FP32", (2, 2), 15, "expected 16 bytes"),
        ("FP32", (2**62, 2), 0, f"expected {2**65} bytes"),
    ],
)
def test_wrong_binary_is_refused(dtype: str, shape: tuple[int, ...], size: int, text: str) -> None:
    """Dtype, shape and length are validated without overflow, even for shapes beyond 64 bits."""
    with pytest.raises(RequestError, match=text):
        tensors.from_binary(X, dtype, shape, memoryview(bytes(size)))


def test_bool_bytes_are_zero_or_one() -> None:
    """A BOOL element must be the byte 0 or 1."""
    spec = TensorSpec("b", "BOOL", (2,))
    assert tensors.from_binary(spec, "BOOL", (2,), memoryview(b"\x00\x01")).shape == (2,)
    with pytest.raises(RequestError, match="bytes 0 or 1"):
        tensors.from_binary(spec, "BOOL", (2,), memoryview(b"\x00\x02"))


def text(*values: bytes) -> memoryview:
    return memoryview(b"".join(struct.pack("<I", len(value)) + value for value in values))


def test_strings_have_their_length_before_them() -> None:
    """BYTES elements are read by their 4-byte little-endian length prefixes."""
    spec = TensorSpec("s", "BYTES", (-1,))
    raw = tensors.from_binary(spec, "BYTES", (2,), text(b"a", "é".encode()))
    assert raw.payload == ["a", "é"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (text(b"a"), "5 bytes for all of them"),
        (text(b"abcdefgh"), "end inside element 1"),
        (memoryview(struct.pack("<II", 0, 9)), "end inside element 1"),
        (text(b"a", b"b", b"c"), "5 bytes after the last"),
        (text(b"a", b"\xff"), "expected UTF-8 text, got other bytes in element 1"),
        (memoryview(struct.pack("<I", 2**32 - 1) + b"abcd"), "end inside element 0"),
    ],
)
def test_damaged_strings_are_refused(data: memoryview, words: str) -> None:
    """A count or length that does not fit, or bytes that are not UTF-8, are refused."""
    spec = TensorSpec("s", "BYTES", (-1,))
    with pytest.raises(RequestError, match=words):
        tensors.from_binary(spec, "BYTES", (2,), data)


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
    """A list of the signature's type and shape yields its values and its shape."""
    assert read(dtype, shape, text) == (value, found)


@pytest.mark.parametrize(
    ("dtype", "shape", "text", "got"),
    [
        ("FP32", (-1,), "[1, true]", "a boolean at index [1]"),
        ("FP32", (-1,), '["1"]', "a string at index [0]"),
        ("FP32", (-1,), "[null]", "null, which stands for NaN, at index [0]"),
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
        ("FP32", (-1, -1), "[[], [3]]", "lengths 0 and 1"),
        ("FP32", (-1, 2), "[[]]", "a list of 0 at index [0]"),
        ("FP32", (0,), "[1]", "a list of 1"),
        ("FP32", (-1, -1, 2, -1), "[[[[1],[2]],[[1],[2,3]]]]", "lengths 1 and 2"),
        ("FP32", (-1, 2), "[1, 2]", "an integer instead of a list at index [0]"),
        ("FP32", (-1,), "[[1]]", "a list at index [0]"),
        ("FP32", (-1,), "[1,", "truncated"),
        ("FP32", (), "[" * 100_000, "recursion"),
        ("INT64", (), "9" * 5000, "out of range"),
        ("INT64", (), "9" * 30, "out of range"),
    ],
)
def test_other_values_are_refused(dtype: str, shape: tuple[int, ...], text: str, got: str) -> None:
    """A value that does not fit is refused with its index; so is deep nesting."""
    with pytest.raises(RequestError) as caught:
        read(dtype, shape, text)
    assert caught.value.input == "x"
    assert got in caught.value.got
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("dtype", "most", "shown", "beyond"),
    [
        ("FP32", float(np.finfo(np.float32).max), "3.4028235e38", "3.4028236e38"),
        ("FP32", float(np.finfo(np.float32).max), "-3.40282347e+38", "-3.4028235677973367e38"),
        ("FP16", float(np.finfo(np.float16).max), "65519.999", "65520"),
        ("FP64", float(np.finfo(np.float64).max), "1.797693134862315708e308", "1e309"),
    ],
)
def test_floats_are_in_range_if_they_are_once_rounded(
    dtype: str, most: float, shown: str, beyond: str
) -> None:
    """What rounds to the largest number of the type is accepted, as most languages print that with
    few digits; what rounds to infinity is refused."""
    value, _ = read(dtype, (1,), f"[{shown}]")
    rounded = np.array(value, {"FP16": "f2", "FP32": "f4", "FP64": "f8"}[dtype])[0]
    assert abs(float(rounded)) == most
    with pytest.raises(RequestError, match="out of range"):
        read(dtype, (1,), f"[{beyond}]")


@pytest.mark.parametrize(
    ("dtype", "has"), [("FP16", True), ("FP32", True), ("FP64", True), ("INT8", False),
                       ("UINT64", False), ("BOOL", False), ("BYTES", False)]
)  # fmt: skip
def test_null_is_nan_in_floats_only(dtype: str, has: bool) -> None:
    """Null stands for NaN in inputs of floats not declared finite, and nowhere else."""
    spec = TensorSpec("x", dtype, (-1,))
    assert tensors.has_null(spec, {}) == has
    assert not tensors.has_null(spec, {"x": InputRule(finite=True)})
    if has:
        assert tensors.read(spec, msgspec.Raw(b"[null, 1]"), null=True) == ([None, 1.0], (2,))
        with pytest.raises(RequestError, match=r"a string at index \[1\]"):
            tensors.read(spec, msgspec.Raw(b'[null, "1"]'), null=True)
        with pytest.raises(RequestError, match="null instead of a list"):
            tensors.read(spec, msgspec.Raw(b"null"), null=True)


@pytest.mark.parametrize("dtype", sorted(dtypes.INTEGER_RANGE))
def test_integer_bounds_are_exact(dtype: str) -> None:
    """The limits of every integer type are accepted, the next integers refused."""
    low, high = dtypes.INTEGER_RANGE[dtype]
    assert read(dtype, (2,), f"[{low}, {high}]")[0] == [low, high]
    for beyond in (low - 1, high + 1):
        with pytest.raises(RequestError):
            read(dtype, (1,), f"[{beyond}]")


def test_flat_lists_are_counted() -> None:
    """A flat list must have as many elements as the shape requires."""
    spec = TensorSpec("x", "UINT64", (-1, 2))
    assert tensors.read_flat(spec, (1, 2), msgspec.Raw(b"[1, 2]")) == [1, 2]
    with pytest.raises(RequestError, match=r"expected 4 elements for shape \[2, 2\], got 2"):
        tensors.read_flat(spec, (2, 2), msgspec.Raw(b"[1, 2]"))
    with pytest.raises(RequestError, match=str(2**64)):
        tensors.read_flat(spec, (1, 2), msgspec.Raw(f"[1, {2**64}]".encode()))
    with pytest.raises(RequestError, match="a string at index"):
        tensors.read_flat(spec, (1, 2), msgspec.Raw(b'[1, "2"]'))


def test_large_wrong_values_are_not_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong element of a large value is described as the decoder does it: as Python objects, the
    value would need many times its size."""
    monkeypatch.setattr(tensors, "EXPLAINED_MAX", 8)
    with pytest.raises(RequestError, match=r"Expected `float`, got `array` - at `\$\[3\]`"):
        read("FP32", (-1,), "[1,2,3,[]]")
    with pytest.raises(RequestError, match="a list at index"):
        read("FP32", (-1,), "[1,2,[]]")
