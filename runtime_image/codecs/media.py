"""Decodes pictures and WAV files to tensors, by the manifest's ImageForm and AudioForm.

Pillow and `wave` are imported when the first picture or clip arrives: most replicas never need
them.

Source for WAV: Microsoft and IBM, "Multimedia Programming Interface and Data Specifications 1.0":
PCM is unsigned in 8 bits, two's complement little-endian above.
"""

from __future__ import annotations

import re
import struct
from io import BytesIO
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime_image.codecs.raw import PICTURES
from runtime_image.contract.errors import RequestError, bad_input
from runtime_image.contract.model import AudioForm, ImageForm, media_range

PIXELS_MAX: Final = 50_000_000
"""Max pixels of a picture that is decoded; a small file may expand to gigabytes."""
SAMPLES_MAX: Final = 16_000 * 60 * 30
"""Max samples of a clip after resampling (30 minutes at 16 kHz): a low rate expands a small
file."""
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


def decode_audio(
    name: str, body: memoryview, form: AudioForm, dtype: str = "FP32"
) -> NDArray[np.floating[Any]]:
    """Return the clip as mono floats [1, samples] at the form's rate, over the `media_range` of an
    input of `dtype`; raises BAD_INPUT.

    Supports PCM of 8, 16, 24 or 32 bits. Channels are averaged; resampling is linear, unfiltered.
    """
    import wave

    try:
        with wave.open(BytesIO(body)) as clip:
            rate, width, channels = clip.getframerate(), clip.getsampwidth(), clip.getnchannels()
            data = clip.readframes(clip.getnframes())
    except (wave.Error, EOFError, struct.error, ValueError, RuntimeError) as error:
        raise bad_input(name, "a PCM WAV file", f"a broken one: {error}") from None
    if width not in (1, 2, 3, 4) or rate < 1:
        raise bad_input(name, "PCM of 8 to 32 bits", f"{8 * width} bits at {rate} Hz")
    frames = len(data) // (width * channels)
    if not frames:
        raise bad_input(name, "a WAV file with samples", "none")
    # `_fit` cuts the clip to the form's samples: frames beyond them need no decoding.
    if form.samples is not None:
        frames = min(frames, form.samples * rate // form.rate_hz + 2)
    mono = _mono(data[: frames * width * channels], width, channels)
    values = _fit(_resample(name, mono, rate, form.rate_hz), form.samples)
    low, high = media_range("audio", dtype)
    if (low, high) == (-1, 1):
        return values
    # As in PCM, the largest sample is one step below what 1 would be.
    half = (high - low + 1) / 2
    return values * half + (low + half)


def _mono(data: bytes, width: int, channels: int) -> NDArray[np.float32]:
    values: NDArray[Any]
    if width == 1:
        values = (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    elif width == 3:
        # 24 bits become the upper three bytes of 32, which preserves sign and scale.
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        values = wide.reshape(-1).view("<i4").astype(np.float32) / np.float32(2**31)
    else:
        values = np.frombuffer(data, f"<i{width}").astype(np.float32)
        values = values / np.float32(2 ** (8 * width - 1))
    mono: NDArray[np.float32] = values.reshape(-1, channels).mean(axis=1, dtype=np.float32)
    return mono


def _resample(
    name: str, values: NDArray[np.float32], rate: int, wanted: int
) -> NDArray[np.float32]:
    if rate == wanted:
        return values
    count = max(1, values.size * wanted // rate)
    if count > SAMPLES_MAX:
        raise bad_input(name, f"at most {SAMPLES_MAX} samples at {wanted} Hz", f"{count}")
    at = np.arange(count) * (rate / wanted)
    samples: NDArray[np.float32] = np.interp(at, np.arange(values.size), values).astype(np.float32)
    return samples


def _fit(values: NDArray[np.float32], samples: int | None) -> NDArray[np.float32]:
    if samples is None or samples == values.size:
        return values[np.newaxis]
    row = np.zeros((1, samples), np.float32)
    kept = min(samples, values.size)
    row[0, :kept] = values[:kept]
    return row


def preload() -> None:
    """Import the libraries for pictures and clips before the first one arrives."""
    import wave  # noqa: F401 - see above

    from PIL import Image, ImageOps, WebPImagePlugin  # noqa: F401 - WebP is not in `preinit`

    Image.preinit()
