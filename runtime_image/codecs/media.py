"""Decodes pictures to tensors, by the manifest's ImageForm.

Pillow is imported when the first picture arrives: most replicas never need it.
"""

from __future__ import annotations

import re
from io import BytesIO
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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
    orientation, put transparent parts on white (as viewers do), convert the mode, resize to `size`
    without preserving the aspect ratio (bilinear, area-weighted when shrinking), invert if the form
    requests it (255 - pixel), then (pixel * scale - mean) / std, see `ImageForm`. Only the first
    frame of an animation is used.
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
        picture = Image.open(BytesIO(body), formats=PICTURES)
        _check_pixels(name, picture.size)
        if picture.format == "PNG" and _PNG_END.search(body) is None:
            raise bad_input(name, "an intact picture", "a PNG that is cut off: its end is missing")
        # The orientation may still swap the axes, so either side must fit the longer one.
        picture.draft(form.mode, (max(form.size), max(form.size)))
        return _upright(picture, form.mode).resize((width, height), Image.Resampling.BILINEAR)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise bad_input(name, f"a picture of at most {PIXELS_MAX} pixels", "far more") from None
    except RequestError:
        raise
    except Exception as error:  # noqa: BLE001  # Pillow's decoders raise anything on damaged files
        raise bad_input(name, "an intact picture", f"a damaged one: {error}") from None


def _check_pixels(name: str, size: tuple[int, int]) -> None:
    width, height = size
    if width * height > PIXELS_MAX:
        raise bad_input(
            name, f"a picture of at most {PIXELS_MAX} pixels", f"{width} x {height} pixels"
        )


def _upright(picture: Any, mode: str) -> Any:
    """Return the picture in `mode`, oriented and composed as a viewer shows it."""
    from PIL import Image, ImageOps

    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I"):
        # 16-bit grey: Pillow's own conversion clips at 255 instead of scaling.
        grey = np.asarray(picture).astype(np.int64) >> 8
        picture = Image.fromarray(np.clip(grey, 0, 255).astype(np.uint8))
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        paper = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(paper, picture)
    return picture.convert(mode)


def preload() -> None:
    """Import the library for pictures before the first one arrives."""
    from PIL import Image, ImageOps, WebPImagePlugin  # noqa: F401 - WebP is not in `preinit`

    Image.preinit()
