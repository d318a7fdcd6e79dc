"""Decodes sounds to tensors, by the manifest's AudioForm: WAV, and by soundfile FLAC and Ogg.

soundfile is the extra `audio`. It is imported when the first such sound arrives, and reads no other
formats: each would be one more parser of strangers' bytes.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime_image.codecs import wav
from runtime_image.codecs.raw import AUDIO_MAGIC
from runtime_image.contract.errors import bad_input
from runtime_image.contract.model import AudioForm, media_range

SAMPLES_MAX: Final = 16_000 * 60 * 30
"""Max samples of a clip after resampling (30 minutes at 16 kHz): a low rate expands a small
file."""
FRAMES_MAX: Final = 48_000 * 60 * 30
"""Max frames of a compressed clip (30 minutes at 48 kHz): silence takes next to no bytes."""
CHANNELS_MAX: Final = 64
"""Max channels of a compressed clip."""
_BLOCK: Final = 2**16
"""Frames of all channels that are decoded at once."""


def decode(
    name: str, body: memoryview, form: AudioForm, dtype: str = "FP32"
) -> NDArray[np.floating[Any]]:
    """Return the clip as mono floats [1, samples] at the form's rate, over the `media_range` of an
    input of `dtype`; raises BAD_INPUT.

    Channels are averaged; resampling is linear, unfiltered. Samples of float files may exceed the
    range of floats.
    """
    try:
        if AUDIO_MAGIC[bytes(body[:4])] == "WAV":
            mono, rate = _wav(body, form)
        else:
            mono, rate = _compressed(body, form)
    except wav.Unreadable as error:
        raise bad_input(name, error.expected, str(error)) from None
    if not mono.size:
        raise bad_input(name, "a sound with samples", "none")
    if not np.isfinite(mono).all():
        at = int(np.argmin(np.isfinite(mono)))
        raise bad_input(name, "finite samples", f"NaN or infinity in frame {at}")
    values = _fit(_resample(name, mono, rate, form.rate_hz), form.samples)
    low, high = media_range("audio", dtype)
    if (low, high) == (-1, 1):
        return values
    # As in PCM, the largest sample is one step below what 1 would be.
    half = (high - low + 1) / 2
    return values * half + (low + half)


def _needed(form: AudioForm, rate: int) -> int | None:
    """Return the frames that the form's samples are made of, None for all."""
    return None if form.samples is None else form.samples * rate // form.rate_hz + 2


def _wav(body: memoryview, form: AudioForm) -> tuple[NDArray[np.float32], int]:
    clip = wav.read(body)
    data = clip.data
    needed = _needed(form, clip.rate_hz)
    if needed is not None:
        data = data[: needed * clip.width * clip.channels]
    if clip.kind == "float":
        with np.errstate(over="ignore"):  # what FP32 cannot hold is not finite then
            values = np.frombuffer(data, f"<f{clip.width}").astype(np.float32)
    else:
        values = _integers(data, clip.width)
    frames = values.reshape(-1, clip.channels)
    with np.errstate(over="ignore", invalid="ignore"):
        return frames.mean(axis=1, dtype=np.float32), clip.rate_hz


def _integers(data: memoryview, width: int) -> NDArray[np.float32]:
    """Return samples of `width` bytes in [-1, 1)."""
    if width == 1:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - np.float32(128)) / np.float32(
            128
        )
    size = next(size for size in (2, 4, 8) if size >= width)
    if size != width:
        # As the upper bytes of a longer integer, which preserves sign and scale.
        wide = np.zeros((len(data) // width, size), np.uint8)
        wide[:, size - width :] = np.frombuffer(data, np.uint8).reshape(-1, width)
        data = wide.reshape(-1).data
    scale = np.float32(2.0 ** (8 * size - 1))
    return np.frombuffer(data, f"<i{size}").astype(np.float32) / scale


def _compressed(body: memoryview, form: AudioForm) -> tuple[NDArray[np.float32], int]:
    try:
        import soundfile  # type: ignore[import-untyped]  # it has no annotations
    except (ImportError, OSError) as error:
        raise wav.Unreadable(
            "FLAC or Ogg, which this replica cannot read: make install EXTRAS=audio, or derive an"
            f" image with soundfile ({error})",
            "a WAV file",
        ) from None
    expected = "an intact FLAC or Ogg file"
    try:
        with soundfile.SoundFile(BytesIO(body)) as clip:
            if clip.format not in ("FLAC", "OGG") or clip.channels > CHANNELS_MAX:
                raise wav.Unreadable(f"{clip.format} with {clip.channels} channels", expected)
            return _read(clip, _needed(form, clip.samplerate)), clip.samplerate
    except soundfile.SoundFileError as error:
        raise wav.Unreadable(f"a damaged one: {error}", expected) from None


def _read(clip: Any, needed: int | None) -> NDArray[np.float32]:
    """Return the first frames, all for None, of which FRAMES_MAX are accepted; the count in the
    header may be wrong."""
    parts: list[NDArray[np.float32]] = []
    count = 0
    most = FRAMES_MAX + 1 if needed is None else min(needed, FRAMES_MAX + 1)
    block = max(1, _BLOCK // clip.channels)
    while count < most:
        frames = clip.read(min(block, most - count), dtype="float32", always_2d=True)
        if not len(frames):
            break
        count += len(frames)
        parts.append(frames.mean(axis=1, dtype=np.float32))
    if count > FRAMES_MAX:
        raise wav.Unreadable("more", f"at most {FRAMES_MAX} frames")
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


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
