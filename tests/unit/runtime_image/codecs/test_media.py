"""Images and WAV files become the manifest's tensors; damaged files are refused."""

from __future__ import annotations

import io
import wave
from typing import Any

import numpy as np
import pytest
from PIL import Image

from runtime_image.codecs import media
from runtime_image.contract.errors import BAD_INPUT, RequestError
from runtime_image.contract.model import AudioForm, ImageForm


def file(picture: Image.Image, kind: str = "PNG", **options: Any) -> memoryview:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return memoryview(buffer.getvalue())


def decode(body: memoryview, **form: Any) -> np.ndarray:
    return media.decode_image("x", body, ImageForm(**{"scale": 1.0, **form}))


PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
COLOUR = Image.fromarray(PIXELS)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [("CHW", PIXELS.transpose(2, 0, 1)), ("HWC", PIXELS)],
)
def test_colours_are_laid_out(layout: str, expected: np.ndarray) -> None:
    """Channels come first or last, after a batch axis of 1, as float32."""
    array = decode(file(COLOUR), size=(2, 4), layout=layout)
    assert (array.dtype, array.flags.c_contiguous) == (np.float32, True)
    assert np.array_equal(array, expected[np.newaxis])


@pytest.mark.parametrize(
    ("layout", "shape"), [("HW", (1, 2, 4)), ("HWC", (1, 2, 4, 1)), ("CHW", (1, 1, 2, 4))]
)
def test_grey_has_its_layouts(layout: str, shape: tuple[int, ...]) -> None:
    """A greyscale image has no channel axis, or one in first or last place."""
    assert decode(file(COLOUR), size=(2, 4), mode="L", layout=layout).shape == shape


def test_values_are_normalised_per_channel() -> None:
    """(pixel * scale - mean) / std, with one mean and std per channel."""
    form = ImageForm((2, 4), scale=0.5, mean=(1.0, 2.0, 3.0), std=(1.0, 2.0, 4.0))
    array = media.decode_image("x", file(COLOUR), form)
    expected = (PIXELS * 0.5 - [1, 2, 3]) / [1, 2, 4]
    assert np.allclose(array[0], expected.transpose(2, 0, 1))


def test_inversion_comes_before_scaling() -> None:
    """An inverted pixel is 255 minus itself."""
    array = decode(file(COLOUR), size=(2, 4), layout="HWC", invert=True)
    assert np.array_equal(array[0], 255 - PIXELS.astype(np.float32))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
def test_every_format_is_resized(kind: str) -> None:
    """Each supported format is decoded and resized."""
    picture = Image.new("RGB", (64, 32), (200, 200, 200))
    array = decode(file(picture, kind), size=(4, 6))
    assert array.shape == (1, 3, 4, 6)
    assert np.allclose(array, 200, atol=3)


def test_transparency_is_laid_on_white() -> None:
    """A transparent pixel becomes white, whatever colour it hides."""
    clear = Image.new("RGBA", (1, 1), (0, 0, 0, 0))
    assert decode(file(clear), size=(1, 1)).ravel().tolist() == [255, 255, 255]
    palette = Image.new("P", (1, 1), 0)
    body = file(palette, transparency=0)
    assert decode(body, size=(1, 1), mode="L").ravel().tolist() == [255]


def test_sixteen_bit_grey_keeps_its_scale() -> None:
    """16-bit greyscale keeps its scale: 65535 is white, half of it grey, nothing is clipped."""
    deep = Image.fromarray(np.array([[0, 32768, 65535]], np.uint16))
    array = decode(file(deep), size=(1, 3), mode="L", layout="HW")
    assert array.ravel().tolist() == [0, 128, 255]


def test_the_orientation_is_applied() -> None:
    """An image with an EXIF orientation is turned upright."""
    exif = Image.Exif()
    exif[0x0112] = 6
    body = file(Image.fromarray(PIXELS), exif=exif)
    array = decode(body, size=(4, 2), layout="HWC")
    assert np.array_equal(array[0], np.rot90(PIXELS, -1))


def test_large_jpegs_are_decoded_at_a_smaller_scale() -> None:
    """The scale at which a JPEG is decoded is never below the wanted size."""
    picture = Image.new("RGB", (800, 400), (10, 20, 30))
    assert decode(file(picture, "JPEG"), size=(40, 90)).shape == (1, 3, 40, 90)


@pytest.mark.parametrize("size", [(10_000, 5_001), (20_000, 5_000), (20_000, 20_000)])
def test_bombs_are_refused_before_they_unfold(size: tuple[int, int]) -> None:
    """An image over the pixel limit is refused by its header."""
    body = bytearray(file(Image.new("1", (1, 1)), "BMP"))
    body[18:26] = size[0].to_bytes(4, "little") + size[1].to_bytes(4, "little")
    with pytest.raises(RequestError, match="at most 50000000 pixels") as caught:
        decode(memoryview(bytes(body)), size=(1, 1))
    assert caught.value.code == BAD_INPUT


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_damage_is_bad_input(kind: str) -> None:
    """A truncated or corrupted file is refused as bad input."""
    whole = bytes(file(Image.fromarray(np.tile(PIXELS, (20, 20, 1))), kind))
    for body in (whole[:40], whole[:12] + whole[20:60]):
        with pytest.raises(RequestError, match="intact picture"):
            decode(memoryview(body), size=(2, 2))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "WEBP"])
def test_no_cut_file_is_accepted(kind: str) -> None:
    """A truncated image is refused wherever it is cut; bytes after its end are ignored."""
    whole = bytes(file(COLOUR, kind))
    for length in range(len(whole)):
        with pytest.raises(RequestError, match="intact picture"):
            decode(memoryview(whole[:length]), size=(2, 4))
    assert decode(memoryview(whole + b"more"), size=(2, 4)).shape == (1, 3, 2, 4)


def file_audio(data: bytes, width: int = 2, channels: int = 1, rate: int = 16000) -> memoryview:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as clip:
        clip.setsampwidth(width)
        clip.setnchannels(channels)
        clip.setframerate(rate)
        clip.writeframes(data)
    return memoryview(buffer.getvalue())


def decode_audio(body: memoryview, **form: int) -> list[float]:
    array = media.decode_audio("x", body, AudioForm(**form))
    assert (array.dtype, array.ndim, array.shape[0]) == (np.float32, 2, 1)
    values: list[float] = array[0].tolist()
    return values


@pytest.mark.parametrize(
    ("width", "data"),
    [
        (1, b"\x80\x00\xc0"),
        (2, b"\x00\x00\x00\x80\x00\x40"),
        (3, b"\x00\x00\x00\x00\x00\x80\x00\x00\x40"),
        (4, b"\x00\x00\x00\x00\x00\x00\x00\x80\x00\x00\x00\x40"),
    ],
)
def test_every_width_has_the_same_scale(width: int, data: bytes) -> None:
    """Silence is 0, the minimum -1 and half of the maximum 0.5, for samples of 8 to 32 bits."""
    assert decode_audio(file_audio(data, width)) == [0.0, -1.0, 0.5]


def test_channels_are_averaged() -> None:
    """Two channels are averaged."""
    data = np.array([16384, 0, 0, -16384], "<i2").tobytes()
    assert decode_audio(file_audio(data, channels=2)) == [0.25, -0.25]


def test_rates_are_interpolated() -> None:
    """Doubling the rate interpolates samples, halving it takes every second one."""
    data = np.array([0, 16384, 0, 16384], "<i2").tobytes()
    assert decode_audio(file_audio(data, rate=8000)) == [0.0, 0.25, 0.5, 0.25, 0.0, 0.25, 0.5, 0.5]
    assert decode_audio(file_audio(data, rate=32000)) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("samples", "expected"), [(1, [0.5]), (2, [0.5, -0.5]), (4, [0.5, -0.5, 0.0, 0.0])]
)
def test_clips_are_cut_or_padded(samples: int, expected: list[float]) -> None:
    """A fixed length cuts the end or pads with silence."""
    data = np.array([16384, -16384], "<i2").tobytes()
    assert decode_audio(file_audio(data), samples=samples) == expected


def test_a_cut_clip_is_the_start_of_the_whole() -> None:
    """Decoding only the needed part of a clip changes none of its samples."""
    data = np.arange(400, dtype="<i2").tobytes()
    body = file_audio(data, rate=11025)
    assert decode_audio(body, samples=100) == decode_audio(body)[:100]


def test_a_cut_file_loses_its_last_frame_only() -> None:
    """A file_audio that ends within a frame is read up to that frame."""
    body = file_audio(np.array([16384, 16384], "<i2").tobytes())
    assert decode_audio(body[:-1]) == [0.5]


def test_a_low_rate_cannot_unfold_a_file() -> None:
    """A clip whose resampled length exceeds the limit is refused before resampling."""
    with pytest.raises(RequestError, match="at most 28800000 samples"):
        decode_audio(file_audio(bytes(5000), rate=1))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (memoryview(b"RIFF\x04\0\0\0WAVE" + bytes(40)), "a broken one"),
        (file_audio(b""), "with samples, got none"),
        (memoryview(bytes(file_audio(bytes(8))).replace(b"\x10\0data", b"\x40\0data")), "64 bits"),
        (memoryview(bytes(file_audio(bytes(8))).replace(b"\x80\x3e\0\0", bytes(4))), "at 0 Hz"),
        (
            memoryview(bytes(file_audio(bytes(8))).replace(b"\x01\0\x01\0", b"\x03\0\x01\0")),
            "broken",
        ),
        (file_audio(bytes(8))[:30], "broken"),
    ],
)
def test_other_files_are_refused(body: memoryview, words: str) -> None:
    """Corrupt files, encodings other than PCM, odd sample widths and empty clips are bad input."""
    with pytest.raises(RequestError, match=words):
        decode_audio(body)
