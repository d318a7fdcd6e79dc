"""WAV files into tensors, as the manifest's AudioForm says.

Source: Microsoft and IBM, "Multimedia Programming Interface and Data Specifications 1.0": PCM is
unsigned in 8 bits, two's complement little-endian above.
"""

from __future__ import annotations

import struct
import wave
from io import BytesIO
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime_image.contract.errors import bad_input
from runtime_image.contract.model import AudioForm

SAMPLES_MAX: Final = 16_000 * 60 * 30
"""Samples of a clip after resampling (30 minutes at 16 kHz): a low rate unfolds a small file."""


def decode(name: str, body: memoryview, form: AudioForm) -> NDArray[np.float32]:
    """The clip as mono float32 [1, samples] in [-1, 1] at the form's rate; raises BAD_INPUT.

    PCM of 8, 16, 24 or 32 bits; channels are averaged; resampling is linear, without a filter.
    """
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
    # Only so many frames reach a clip that is cut: the rest need not be decoded.
    if form.samples is not None:
        frames = min(frames, form.samples * rate // form.rate_hz + 2)
    mono = _mono(data[: frames * width * channels], width, channels)
    return _fit(_resample(name, mono, rate, form.rate_hz), form.samples)


def _mono(data: bytes, width: int, channels: int) -> NDArray[np.float32]:
    values: NDArray[Any]
    if width == 1:
        values = (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    elif width == 3:
        # 24 bits become the upper three bytes of 32, which keeps sign and scale.
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
