"""WAV files become mono float rows at the wanted rate; damaged ones are refused."""

import io
import wave

import numpy as np
import pytest

from runtime_image.codecs import media
from runtime_image.contract.errors import RequestError
from runtime_image.contract.model import AudioForm


def file(data: bytes, width: int = 2, channels: int = 1, rate: int = 16000) -> memoryview:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as clip:
        clip.setsampwidth(width)
        clip.setnchannels(channels)
        clip.setframerate(rate)
        clip.writeframes(data)
    return memoryview(buffer.getvalue())


def decode(body: memoryview, **form: int) -> list[float]:
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
    """Silence is 0, the lowest sample -1, half of the highest 0.5, in 8 to 32 bits."""
    assert decode(file(data, width)) == [0.0, -1.0, 0.5]


def test_channels_are_averaged() -> None:
    """Two channels become their mean."""
    data = np.array([16384, 0, 0, -16384], "<i2").tobytes()
    assert decode(file(data, channels=2)) == [0.25, -0.25]


def test_rates_are_interpolated() -> None:
    """Twice the rate has the samples between, half the rate every second one."""
    data = np.array([0, 16384, 0, 16384], "<i2").tobytes()
    assert decode(file(data, rate=8000)) == [0.0, 0.25, 0.5, 0.25, 0.0, 0.25, 0.5, 0.5]
    assert decode(file(data, rate=32000)) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("samples", "expected"), [(1, [0.5]), (2, [0.5, -0.5]), (4, [0.5, -0.5, 0.0, 0.0])]
)
def test_clips_are_cut_or_padded(samples: int, expected: list[float]) -> None:
    """A fixed length cuts the end or adds silence."""
    data = np.array([16384, -16384], "<i2").tobytes()
    assert decode(file(data), samples=samples) == expected


def test_a_cut_clip_is_the_start_of_the_whole() -> None:
    """Decoding only what a cut clip needs changes none of its samples."""
    data = np.arange(400, dtype="<i2").tobytes()
    body = file(data, rate=11025)
    assert decode(body, samples=100) == decode(body)[:100]


def test_a_cut_file_loses_its_last_frame_only() -> None:
    """A file that ends within a frame is read up to it."""
    body = file(np.array([16384, 16384], "<i2").tobytes())
    assert decode(body[:-1]) == [0.5]


def test_a_low_rate_cannot_unfold_a_file() -> None:
    """A clip that would resample beyond the limit is refused before it does."""
    with pytest.raises(RequestError, match="at most 28800000 samples"):
        decode(file(bytes(5000), rate=1))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (memoryview(b"RIFF\x04\0\0\0WAVE" + bytes(40)), "a broken one"),
        (file(b""), "with samples, got none"),
        (memoryview(bytes(file(bytes(8))).replace(b"\x10\0data", b"\x40\0data")), "64 bits"),
        (memoryview(bytes(file(bytes(8))).replace(b"\x80\x3e\0\0", bytes(4))), "at 0 Hz"),
        (memoryview(bytes(file(bytes(8))).replace(b"\x01\0\x01\0", b"\x03\0\x01\0")), "broken"),
        (file(bytes(8))[:30], "broken"),
    ],
)
def test_other_files_are_refused(body: memoryview, words: str) -> None:
    """Damage, other encodings than PCM, odd widths and empty clips are bad input."""
    with pytest.raises(RequestError, match=words):
        decode(body)
