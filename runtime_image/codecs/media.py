"""Decodes pictures to tensors, by the manifest's ImageForm.

Pillow is imported when the first picture arrives: most replicas never need it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime_image.codecs.pictures import opened
from runtime_image.contract.model import ImageForm, media_range


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

    def decoded(picture: Any, clear: int | None) -> Any:
        # The orientation may still swap the axes, so either side must fit the longer one.
        picture.draft(form.mode, (max(form.size), max(form.size)))
        return _composed(picture, form.mode, clear)

    height, width = form.size
    return opened(name, body, decoded).resize((width, height), Image.Resampling.BILINEAR)


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
