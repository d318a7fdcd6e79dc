"""Sounds become the manifest's tensors, whatever program wrote them; damaged files are refused."""

from __future__ import annotations

import io
import math
import struct
import sys
import tracemalloc
import wave

import numpy as np
import pytest
import soundfile

from runtime_image.codecs import sounds
from runtime_image.contract.errors import BAD_INPUT, RequestError
from runtime_image.contract.model import AudioForm

RATE = 16000
TONE = (np.sin(np.arange(1600) / 7) * 0.8).astype(np.float32)
GUID_END = bytes.fromhex("000000001000800000aa00389b71")
UNKNOWN = 0xFFFFFFFF


def file_audio(data: bytes, width: int = 2, channels: int = 1, rate: int = 16000) -> memoryview:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as clip:
        clip.setsampwidth(width)
        clip.setnchannels(channels)
        clip.setframerate(rate)
        clip.writeframes(data)
    return memoryview(buffer.getvalue())


def decode_audio(body: memoryview, **form: int) -> list[float]:
    array = sounds.decode("x", body, AudioForm(**form))
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


def chunk(name: bytes, data: bytes, size: int | None = None) -> bytes:
    return (
        name
        + struct.pack("<I", len(data) if size is None else size)
        + data
        + b"\0" * (len(data) & 1)
    )


def form_of(bits: int, tag: int = 1, channels: int = 1, block: int | None = None) -> bytes:
    block = (bits + 7) // 8 * channels if block is None else block
    return struct.pack("<HHIIHH", tag, channels, RATE, RATE * block, block, bits)


def extensible(bits: int, tag: int = 1, valid: int = 0, end: bytes = GUID_END) -> bytes:
    return form_of(bits, 0xFFFE) + struct.pack("<HHIH", 22, valid or bits, 4, tag) + end


def riff(*chunks: bytes, magic: bytes = b"RIFF", size: int | None = None) -> memoryview:
    inner = b"WAVE" + b"".join(chunks)
    whole = magic + struct.pack("<I", len(inner) if size is None else size) + inner
    return memoryview(whole + bytes(max(0, 45 - len(whole))))


PCM16 = struct.pack("<3h", 0, -32768, 16384)
FLOAT = chunk(b"fmt ", form_of(64, 3))
FMT, DATA = chunk(b"fmt ", form_of(16)), chunk(b"data", PCM16)
WANTED = [0.0, -1.0, 0.5]


def integers(width: int) -> bytes:
    return b"".join(
        (part << (8 * width - 2)).to_bytes(width, "little", signed=True) for part in (0, -2, 1)
    )


@pytest.mark.parametrize("width", range(2, 9))
@pytest.mark.parametrize("is_extensible", [False, True])
def test_integers_of_all_widths(width: int, is_extensible: bool) -> None:
    """PCM of 16 to 64 bits has one scale, with a plain and with an extensible format."""
    form = extensible(8 * width) if is_extensible else form_of(8 * width)
    assert decode_audio(riff(chunk(b"fmt ", form), chunk(b"data", integers(width)))) == WANTED


@pytest.mark.parametrize("kind", ["<f4", "<f8"])
@pytest.mark.parametrize("is_extensible", [False, True])
def test_floats(kind: str, is_extensible: bool) -> None:
    """Float samples keep their values, also beyond 1."""
    bits = 8 * np.dtype(kind).itemsize
    form = extensible(bits, 3) if is_extensible else form_of(bits, 3)
    data = np.array([0.25, -1.5], kind).tobytes()
    assert decode_audio(riff(chunk(b"fmt ", form), chunk(b"data", data))) == [0.25, -1.5]


def test_bits_are_the_upper_ones_of_their_container() -> None:
    """20 valid bits are in the upper part of 24 or 32: the width comes from the block."""
    plain = chunk(b"fmt ", form_of(20, block=4))
    assert decode_audio(riff(plain, chunk(b"data", integers(4)))) == WANTED
    fewer = chunk(b"fmt ", extensible(24, valid=20))
    assert decode_audio(riff(fewer, chunk(b"data", integers(3)))) == WANTED


ODD = chunk(b"LIST", b"odd")
DS64 = chunk(b"ds64", struct.pack("<QQQI", 100, len(PCM16), 3, 0))
UNPADDED = b"LIST" + struct.pack("<I", 3) + b"odd"


@pytest.mark.parametrize(
    "body",
    [
        riff(ODD, FMT, ODD, chunk(b"fact", bytes(4)), DATA, ODD),
        riff(UNPADDED, FMT, UNPADDED, DATA),
        riff(FMT, chunk(b"data", PCM16, UNKNOWN), size=UNKNOWN),
        riff(FMT, chunk(b"data", PCM16, 0), size=0),
        riff(FMT, chunk(b"data", PCM16, 0), size=36),
        riff(FMT, chunk(b"data", PCM16, 0x7FFFF000)),
        riff(DS64, FMT, chunk(b"data", PCM16, UNKNOWN), magic=b"RF64", size=UNKNOWN),
        riff(DS64, FMT, chunk(b"data", PCM16, UNKNOWN), ODD, magic=b"BW64"),
        riff(chunk(b"fmt ", form_of(16) + bytes(2)), DATA),
        riff(chunk(b"fmt ", form_of(16, block=1)), DATA),
        riff(FMT, b"data" + struct.pack("<I", 8) + PCM16 + b"\1"),
    ],
)  # fmt: skip
def test_headers_of_many_programs(body: memoryview) -> None:
    """Other chunks, odd ones, sizes of streams and of 64 bits, and cut files are read."""
    assert decode_audio(body) == WANTED


def test_an_empty_clip_with_chunks_behind_it_is_empty() -> None:
    """Chunks behind no samples are not taken for samples."""
    with pytest.raises(RequestError, match="with samples, got none"):
        decode_audio(riff(FMT, chunk(b"data", b""), chunk(b"LIST", bytes(100))))


@pytest.mark.parametrize(
    ("kind", "subtype"),
    [
        *(("WAV", one) for one in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")),
        *(("WAVEX", one) for one in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")),
        *(("RF64", one) for one in ("PCM_16", "PCM_24", "FLOAT")),
        *(("FLAC", one) for one in ("PCM_S8", "PCM_16", "PCM_24")),
        ("OGG", "VORBIS"),
        ("OGG", "OPUS"),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_another_decoder_reads_the_same(kind: str, subtype: str, channels: int) -> None:
    """Files of another library are read as that library reads them."""
    buffer = io.BytesIO()
    written = np.stack([TONE * (at + 1) / channels for at in range(channels)], 1)
    soundfile.write(buffer, written, RATE, format=kind, subtype=subtype)
    body = buffer.getvalue()
    wanted = soundfile.read(io.BytesIO(body), dtype="float32", always_2d=True)[0].mean(axis=1)
    assert np.allclose(decode_audio(memoryview(body)), wanted, atol=1e-6)
    assert np.allclose(decode_audio(memoryview(body), samples=40), wanted[:40], atol=1e-6)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (riff(chunk(b"LIST", bytes(40))), "a file without a fmt chunk"),
        (riff(FMT, chunk(b"LIST", bytes(40))), "a file without a data chunk"),
        (riff(DATA, FMT, bytes(40)), "a data chunk before the fmt chunk"),
        (riff(FMT, chunk(b"data", b"")), "with samples, got none"),
        (riff(chunk(b"fmt ", form_of(72, block=9)), DATA), "PCM of 1 to 64 bits, got 72 bits"),
        (riff(chunk(b"fmt ", form_of(0)), DATA), "got 0 bits"),
        (riff(chunk(b"fmt ", form_of(16, 3)), DATA), "float samples of 32 or 64 bits, got 16"),
        (riff(chunk(b"fmt ", form_of(16, channels=0)), DATA), "got 0 channels"),
        (riff(chunk(b"fmt ", form_of(8, 7)), DATA), "got mu-law; convert it with: ffmpeg"),
        (riff(chunk(b"fmt ", form_of(4, 0x1234)), DATA), "got format 0x1234; convert it"),
        (riff(chunk(b"fmt ", bytes(10)), DATA), "a fmt chunk of 10 bytes"),
        (riff(chunk(b"fmt ", form_of(16, 0xFFFE)), DATA), "too short for WAVE_EXTENSIBLE"),
        (riff(chunk(b"fmt ", extensible(16, end=bytes(14))), DATA), "of another vendor"),
        (riff(*[chunk(b"LIST", b"")] * 1000, FMT, DATA), "more than 1000 chunks"),
        (riff(FMT, DATA)[:30], "a fmt chunk of 10 bytes"),
        (riff(FLOAT, chunk(b"data", struct.pack("<2d", 1, math.nan))), "infinity in frame 1"),
        (riff(FLOAT, chunk(b"data", struct.pack("<d", 1e300))), "infinity in frame 0"),
        (memoryview(b"fLaC" + bytes(60)), "an intact FLAC or Ogg file"),
        (memoryview(b"OggS" + bytes(60)), "an intact FLAC or Ogg file"),
    ],
)  # fmt: skip
def test_other_files_are_refused(body: memoryview, words: str) -> None:
    """Corrupt files, other encodings, odd sample widths and empty clips are bad input."""
    with pytest.raises(RequestError, match=words) as caught:
        decode_audio(body)
    assert caught.value.code == BAD_INPUT


def test_a_header_takes_no_memory() -> None:
    """Sizes, channels and rates that a header invents are bounded by the samples that are there."""
    absurd = struct.pack("<HHIIHH", 1, 65535, UNKNOWN, UNKNOWN, 65535, 64)
    body = riff(chunk(b"fmt ", absurd), chunk(b"data", bytes(100), UNKNOWN - 1), size=UNKNOWN)
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="with samples, got none"):
            decode_audio(body, samples=100)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_compressed_silence_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file cannot unfold to more frames than the limit, unless only its start is needed."""
    monkeypatch.setattr(sounds, "FRAMES_MAX", 100_000)
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(100_001, np.float32), RATE, format="FLAC")
    body = memoryview(buffer.getvalue())
    with pytest.raises(RequestError, match="at most 100000 frames"):
        decode_audio(body)
    assert decode_audio(body, samples=3) == [0.0, 0.0, 0.0]


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without soundfile, FLAC and Ogg are refused with how to get it; WAV is read."""
    monkeypatch.setitem(sys.modules, "soundfile", None)
    for magic in (b"fLaC", b"OggS"):
        with pytest.raises(RequestError, match=r"WAV file, got FLAC or Ogg.*EXTRAS=audio"):
            decode_audio(memoryview(magic + bytes(60)))
    assert decode_audio(riff(FMT, DATA)) == WANTED
