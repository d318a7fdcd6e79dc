"""Images become the manifest's tensors; damaged files are refused."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from runtime_image.codecs import media
from runtime_image.contract.errors import BAD_INPUT, RequestError
from runtime_image.contract.model import ImageForm


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
