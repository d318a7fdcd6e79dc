"""Validated inputs become arrays of the signature's dtypes, without copies where possible."""

import io
import wave
from typing import Any

import numpy as np
import pytest

from runtime_image.codecs.accept import SHORT
from runtime_image.codecs.arrays import DTYPES, to_arrays
from runtime_image.codecs.request import Parsed
from runtime_image.codecs.tensors import RawInput
from runtime_image.contract import dtypes
from runtime_image.contract.errors import RequestError
from runtime_image.contract.model import AudioForm, BytesForm, ImageForm, InputRule
from runtime_image.contract.signature import Signature, TensorSpec


def arrays(raw: RawInput, shape: tuple[int, ...], rule: InputRule | None = None) -> np.ndarray:
    signature = Signature("tensors", (TensorSpec("x", raw.dtype, shape),), ())
    parsed = Parsed("short", {"x": raw}, SHORT)
    return to_arrays(parsed, signature, {} if rule is None else {"x": rule})["x"]


def test_binary_inputs_are_views() -> None:
    """An aligned body is not copied, and the array is read-only."""
    body = np.arange(4, dtype="<f4").tobytes()
    array = arrays(RawInput("binary", "FP32", (2, 2), memoryview(body)), (-1, 2))
    assert array.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert not array.flags.owndata
    assert not array.flags.writeable


def test_unaligned_bodies_are_copied() -> None:
    """Elements at an unaligned address are copied, because engines need aligned reads."""
    body = memoryview(b"." + np.arange(2, dtype="<f8").tobytes())[1:]
    array = arrays(RawInput("binary", "FP64", (2,), body), (-1,))
    assert array.flags.aligned
    assert array.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("payload", [[[1, 2], [3, 4]], [1, 2, 3, 4]])
def test_lists_may_be_nested_or_flat(payload: list[Any]) -> None:
    """JSON values, nested or flat, take the validated shape."""
    array = arrays(RawInput("json", "UINT64", (2, 2), payload), (-1, 2))
    assert (array.dtype, array.tolist()) == (np.uint64, [[1, 2], [3, 4]])


def test_strings_become_objects() -> None:
    """BYTES becomes an object array of str, of any rank."""
    array = arrays(RawInput("json", "BYTES", (2, 1), [["ab"], ["c"]]), (-1, 1))
    assert (array.dtype, array.shape, array[0, 0]) == (object, (2, 1), "ab")
    assert arrays(RawInput("json", "BYTES", (), "ab"), ()).item() == "ab"


def test_not_finite_is_refused_with_its_index() -> None:
    """A NaN in an input declared finite is refused with the same text as by the gateway."""
    body = np.array([[1, np.nan]], "<f4").tobytes()
    raw = RawInput("binary", "FP32", (1, 2), memoryview(body))
    with pytest.raises(RequestError, match=r"finite FP32 values, got .* index \[0, 1\]"):
        arrays(raw, (-1, 2), InputRule(finite=True))
    assert np.isnan(arrays(raw, (-1, 2), InputRule())[0, 1])


@pytest.mark.parametrize(
    ("form", "row"),
    [
        (BytesForm(), [1, 2, 3]),
        (BytesForm(length=2), [1, 2]),
        (BytesForm(length=5, pad=9), [1, 2, 3, 9, 9]),
        (None, [1, 2, 3]),
    ],
)
def test_bodies_are_cut_or_padded(form: BytesForm | None, row: list[int]) -> None:
    """A raw body is one row of the declared length, cut or padded, in the signature's dtype."""
    raw = RawInput("bytes", "INT64", (1, len(row)), memoryview(b"\x01\x02\x03"))
    array = arrays(raw, (-1, -1), InputRule("bytes", bytes=form))
    assert (array.dtype, array.tolist()) == (np.int64, [row])


BITMAP = (
    b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\x18\0"
    + bytes(24)
    + b"\x00\x80\xff\x00"
)
"""One pixel: red 255, green 128, blue 0."""


def test_a_picture_for_integers_is_rounded_and_held_to_its_range() -> None:
    """For integer inputs, pixel values are rounded and saturate instead of wrapping."""
    rule = InputRule("image", image=ImageForm((1, 1), scale=2.0, mean=(1.2,), layout="HWC"))
    array = arrays(RawInput("image", "UINT8", (), memoryview(BITMAP)), (-1, 1, 1, 3), rule)
    assert (array.dtype, array.ravel().tolist()) == (np.uint8, [255, 255, 0])


@pytest.mark.parametrize("dtype", sorted(set(DTYPES) - {"BOOL", "BYTES"}))
def test_pixels_have_the_range_of_their_type(dtype: str) -> None:
    """Without scale, mean and std a model gets 0 to 1 in floats, the pixels themselves in integers,
    and 128 less in INT8, which cannot hold them."""
    rule = InputRule("image", image=ImageForm((1, 1), layout="HWC"))
    array = arrays(RawInput("image", dtype, (), memoryview(BITMAP)), (-1, 1, 1, 3), rule)
    pixels = np.array([255, 128, 0])
    wanted = pixels / 255 if dtype.startswith("FP") else pixels - 128 * (dtype == "INT8")
    assert np.allclose(array.ravel(), wanted.astype(DTYPES[dtype]), rtol=1e-6)


@pytest.mark.parametrize("dtype", sorted(dtypes.INTEGER_RANGE))
def test_samples_have_the_full_range_of_integers(dtype: str) -> None:
    """Silence, both extremes and half of them are those of the type, as PCM has them."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as clip:
        clip.setparams((1, 2, 16000, 4, "NONE", ""))
        clip.writeframes(np.array([-32768, 0, 16384, 32767], "<i2").tobytes())
    rule = InputRule("audio", audio=AudioForm(samples=5))
    raw = RawInput("audio", dtype, (), memoryview(buffer.getvalue()))
    array = arrays(raw, (1, 5), rule)[0]
    low, high = dtypes.INTEGER_RANGE[dtype]
    half = (high - low + 1) // 2
    assert array[:3].tolist() == [low, low + half, low + half + half // 2]
    assert high - int(array[3]) <= half >> 15
    assert array[4] == low + half  # padded with silence


def test_a_sound_takes_the_signatures_dtype() -> None:
    """A clip is decoded by its rule and converted to the model's float type."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as clip:
        clip.setparams((1, 2, 16000, 2, "NONE", ""))
        clip.writeframes(b"\x00\x40\x00\xc0")
    rule = InputRule("audio", audio=AudioForm())
    raw = RawInput("audio", "FP16", (), memoryview(buffer.getvalue()))
    array = arrays(raw, (1, -1), rule)
    assert (array.dtype, array.tolist()) == (np.float16, [[0.5, -0.5]])


def test_a_picture_must_fit_the_signature() -> None:
    """A rule that yields another shape, or a non-numeric signature, is reported as bad input."""
    rule = InputRule("image", image=ImageForm((1, 1)))
    raw = RawInput("image", "FP32", (), memoryview(BITMAP))
    with pytest.raises(RequestError, match=r"got shape \[1, 3, 1, 1\]"):
        arrays(raw, (-1, 1, 1, 3), rule)
    raw = RawInput("image", "BYTES", (), memoryview(BITMAP))
    with pytest.raises(RequestError, match="BYTES elements"):
        arrays(raw, (-1, 3, 1, 1), rule)


@pytest.mark.parametrize("kind", ["json", "bytes"])
def test_plain_values_stay_as_they_are(kind: Any) -> None:
    """Functions without tensors get the decoded object itself."""
    value = {"a": [1]}
    parsed = Parsed("short", {"x": RawInput("object", "", (), value)}, SHORT)
    assert to_arrays(parsed, Signature(kind, (), ()), {})["x"] is value
