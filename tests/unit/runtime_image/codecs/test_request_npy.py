"""npy bodies are read by a parser of their own and never by pickle."""

import io
from typing import Any

import numpy as np
import pytest

from runtime_image.codecs import request
from runtime_image.contract.errors import RequestError
from runtime_image.contract.signature import Signature, TensorSpec

SIGNATURE = Signature("tensors", (TensorSpec("x", "FP32", (-1, 2)),), ())


def file(array: Any, version: tuple[int, int] | None = None) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), version=version)
    return buffer.getvalue()


def with_header(header: bytes, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_numpy_writes_is_read(version: tuple[int, int]) -> None:
    """Versions 1.0 to 3.0 give dtype, shape and the untouched elements."""
    array = np.array([[1, 2]], np.float32)
    raw = request.read_npy(memoryview(file(array, version)), SIGNATURE)["x"]
    assert (raw.dtype, raw.shape, bytes(raw.payload)) == ("FP32", (1, 2), array.tobytes())


@pytest.mark.parametrize(
    "header",
    [
        b"{'shape': (1, 2), 'fortran_order': False, 'descr': '<f4'}",
        b"{\"descr\": '<f4', 'fortran_order' : False,'shape':(1,2,),}\n",
    ],
)
def test_other_writers_headers_are_read(header: bytes) -> None:
    """Order of entries and white space do not matter."""
    assert request.read_npy(memoryview(with_header(header, bytes(8))), SIGNATURE)["x"].shape == (
        1,
        2,
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "begins with"),
        (b"\x93NUMPY", "version bytes missing"),
        (b"\x93NUMPY\x04\x00", "version bytes 0400"),
        (b"\x93NUMPY\x01\x00\xff\xff", "at most 0 bytes, got 65535"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(9000), "at most 4096 bytes"),
        (with_header(b"{'descr': '<f4', 'fortran_order': False}"), "header with descr"),
        (with_header(b"{'descr':'<f4','descr':'<f4','descr':'<f4'}"), "header with descr"),
        (with_header(b"{" * 4000), "header with descr"),
        (with_header(b"{" + b" " * 4000), "header with descr"),
        (with_header(b"__import__('os')"), "header with descr"),
        (with_header(b"{'descr':'<f4','fortran_order':False,'shape':(1,,2)}"), "shape of integers"),
        (with_header(b"{'descr':'<f4','fortran_order':False,'shape':(1 2)}"), "shape of integers"),
        (with_header(b"{'descr':'|O','fortran_order':False,'shape':(1,)}"), "got |O"),
        (with_header(b"{'descr':'>f4','fortran_order':False,'shape':(1,2)}"), "got >f4"),
        (file(np.asfortranarray(np.ones((2, 2), np.float32))), "fortran_order: True"),
        (file(np.ones((1, 2), np.float64)), "dtype FP64"),
        (file(np.ones((1, 3), np.float32)), "shape [1, 3]"),
        (file(np.ones((1, 2), np.float32)) + b"x", "expected 8 bytes"),
        (file(np.ones((1, 2), np.float32))[:-1], "expected 8 bytes"),
        (file(np.float32(1)), "shape []"),
    ],
)
def test_other_bodies_are_refused(body: bytes, words: str) -> None:
    """Damage, pickles, other byte orders, Fortran order and wrong tensors are refused."""
    with pytest.raises(RequestError) as caught:
        request.read_npy(memoryview(body), SIGNATURE)
    assert words in caught.value.message


def test_structured_dtypes_are_refused() -> None:
    """A list of fields as descr does not match the header's form."""
    with pytest.raises(RequestError, match="descr"):
        request.read_npy(memoryview(file(np.zeros(1, [("a", "<f4")]))), SIGNATURE)


def test_the_input_is_named_or_the_only_one() -> None:
    """With several inputs the name must be given, and the others are then missing."""
    two = Signature("tensors", (*SIGNATURE.inputs, TensorSpec("y", "FP32", (1,))), ())
    body = memoryview(file(np.ones((1, 2), np.float32)))
    assert list(request.read_npy(body, SIGNATURE, "x")) == ["x"]
    with pytest.raises(RequestError, match="unknown name"):
        request.read_npy(body, SIGNATURE, "z")
    with pytest.raises(RequestError, match="input=NAME"):
        request.read_npy(body, two)
    with pytest.raises(RequestError, match=r"'y': expected FP32 .* missing"):
        request.read_npy(body, two, "x")
