"""Decodes pictures to tensors, by the manifest's ImageForm.

Pillow is imported when the first picture arrives: most replicas never need it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import BytesIO
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime_image.codecs import jpeg, png
from runtime_image.codecs.raw import PICTURES
from runtime_image.contract.errors import RequestError, bad_input
from runtime_image.contract.model import ImageForm, media_range

PIXELS_MAX: Final = 50_000_000
"""Max pixels of a picture that is decoded; a small file may expand to gigabytes."""
_PNG_END: Final = re.compile(rb"IEND\xaeB`\x82")
"""Type and checksum of the chunk that ends a PNG (PNG specification, 11.2.5). Checked separately,
because Pillow stops after the last row and does not read the checksum behind it."""


def decode_image(
    name: str, body: memoryview, form: ImageForm, dtype: str = "FP32"
) -> NDArray[np.float32]:
    """Return the picture as float32 [1, ...] in the form's layout, with values for an input of
    `dtype`; raises BAD_INPUT.

    In this order: decode (JPEGs at the smallest scale that is large enough), apply the EXIF
    orientation if it can be read, put transparent parts on white (as viewers do), convert the mode,
    resize to `size` without preserving the aspect ratio (bilinear, area-weighted when shrinking),
    invert if the form requests it (255 - pixel), then (pixel * scale - mean) / std, see
    `ImageForm`. Only the first frame of an animation is used. No other metadata are read.
    """
    pixels = np.asarray(_open(name, body, form), np.float32)
    if form.invert:
        pixels = np.float32(255) - pixels
    if form.layout != "HW" and pixels.ndim == 2:
        pixels = pixels[:, :, np.newaxis]
    mean, std = np.array(form.mean, np.float32), np.array(form.std, np.float32)
    if pixels.ndim == 2:
        # One channel without a channel axis.
        mean, std = mean[:1], std[:1]
    low, high = (0, 0) if form.scale is not None else media_range("image", dtype)
    scale = form.scale if form.scale is not None else (high - low) / 255
    values = (pixels * np.float32(scale) + np.float32(low) - mean) / std
    if form.layout == "CHW":
        values = values.transpose(2, 0, 1)
    return np.ascontiguousarray(values, np.float32)[np.newaxis]


def _open(name: str, body: memoryview, form: ImageForm) -> Any:
    from PIL import Image

    height, width = form.size
    try:
        picture, turn, clear = _decoder(name, body)
        _check_pixels(name, picture.size)
        # The orientation may still swap the axes, so either side must fit the longer one.
        picture.draft(form.mode, (max(form.size), max(form.size)))
        picture = _composed(picture, form.mode, clear)
        if turn is not None:
            picture = picture.transpose(turn)
        return picture.resize((width, height), Image.Resampling.BILINEAR)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise bad_input(name, f"a picture of at most {PIXELS_MAX} pixels", "far more") from None
    except png.TooManyChunks:
        got = f"one of more than {png.CHUNKS_MAX} chunks"
        raise bad_input(name, "an intact picture", got) from None
    except RequestError:
        raise
    except Exception as error:  # noqa: BLE001  # Pillow's decoders raise anything on damaged files
        raise bad_input(name, "an intact picture", f"a damaged one: {error}") from None


def _decoder(name: str, body: memoryview) -> tuple[Any, Any, int | None]:
    """Return a picture that is not decoded yet, how to turn it upright, and the grey of 16 bits
    that is transparent."""
    from PIL import Image

    if bytes(body[: len(png.SIGNATURE)]) == png.SIGNATURE:
        if _PNG_END.search(body) is None:
            raise bad_input(name, "an intact picture", "a PNG that is cut off: its end is missing")
        found = png.reduce(body)
    elif bytes(body[: len(jpeg.START)]) == jpeg.START:
        found = jpeg.reduce(body)
    else:
        picture = Image.open(BytesIO(body), formats=PICTURES)
        return picture, _turn([picture]), None
    turn = _turn([BytesIO(one) for one in found.oriented])
    return Image.open(BytesIO(found.body), formats=PICTURES), turn, found.clear


def _check_pixels(name: str, size: tuple[int, int]) -> None:
    width, height = size
    if width * height > PIXELS_MAX:
        raise bad_input(
            name, f"a picture of at most {PIXELS_MAX} pixels", f"{width} x {height} pixels"
        )


def _turn(sources: Sequence[Any]) -> Any:
    """Return how to turn a picture upright by its EXIF orientation, None if no source has one that
    can be read. `sources`: pictures, or files of pictures."""
    from PIL import ExifTags, Image

    turns = Image.Transpose
    for source in sources:
        try:
            picture = (
                source if isinstance(source, Image.Image) else Image.open(source, "r", ["PNG"])
            )
            orientation = picture.getexif().get(ExifTags.Base.Orientation)
        except Exception:  # noqa: BLE001, S112  # damaged metadata say nothing about the pixels
            continue
        if orientation is not None:
            return {
                2: turns.FLIP_LEFT_RIGHT,
                3: turns.ROTATE_180,
                4: turns.FLIP_TOP_BOTTOM,
                5: turns.TRANSPOSE,
                6: turns.ROTATE_270,
                7: turns.TRANSVERSE,
                8: turns.ROTATE_90,
            }.get(orientation)
    return None


def _composed(picture: Any, mode: str, clear: int | None) -> Any:
    """Return the picture in `mode`, on white where it is transparent; so is the grey `clear` of 16
    bits."""
    from PIL import Image

    if picture.mode.startswith("I"):
        # 16-bit grey: Pillow's own conversion clips at 255 instead of scaling.
        values = np.asarray(picture)
        grey = np.clip(values.astype(np.int64) >> 8, 0, 255).astype(np.uint8)
        picture = Image.fromarray(
            grey if clear is None else np.where(values == clear, np.uint8(255), grey)
        )
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        paper = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(paper, picture)
    return picture.convert(mode)


def preload() -> None:
    """Import the library for pictures before the first one arrives."""
    from PIL import Image, WebPImagePlugin  # noqa: F401 - WebP is not in `preinit`

    Image.preinit()
