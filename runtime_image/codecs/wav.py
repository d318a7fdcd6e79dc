"""Reads the chunks of a WAV file; decodes no samples and copies nothing.

Sources: Microsoft and IBM, "Multimedia Programming Interface and Data Specifications 1.0" (RIFF,
PCM); Microsoft, "Multiple channel audio data and WAVE files" (WAVE_FORMAT_EXTENSIBLE); EBU Tech
3306 and ITU-R BS.2088 (RF64, BW64: sizes of 64 bits in the chunk ds64).
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final, Literal

CHUNKS_MAX: Final = 1000
"""Max chunks before the samples."""
BITS_MAX: Final = 64
_HEAD: Final = Struct("<4sI")
_FORMAT: Final = Struct("<HHIIHH")
_EXTENSION: Final = Struct("<HHIH14s")
_SIZES: Final = Struct("<QQ")
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_GUID_END: Final = bytes.fromhex("000000001000800000aa00389b71")
"""Bytes of a sub-format's GUID behind its format tag."""
_UNKNOWN: Final = 0xFFFFFFFF
"""Size in a header that was written before the size was known, or that stands in ds64."""
_NAMES: Final = {0x02: "ADPCM", 0x06: "A-law", 0x07: "mu-law", 0x11: "ADPCM", 0x31: "GSM 6.10",
                 0x50: "MPEG", 0x55: "MP3", 0xFF: "AAC"}  # fmt: skip
_REMEDY: Final = "convert it with: ffmpeg -i FILE -c:a pcm_s16le out.wav"


@dataclass(frozen=True, slots=True)
class Wav:
    """Samples of a WAV file. `width`: bytes of one sample of one channel; integers are aligned to
    its upper bits, and unsigned if it is 1. `data` has whole frames only."""

    kind: Literal["integer", "float"]
    width: int
    channels: int
    rate_hz: int
    data: memoryview


class Unreadable(Exception):
    """A sound that is not read. The text is what was found instead of what was `expected`."""

    def __init__(self, got: str, expected: str = "a whole WAV file") -> None:
        super().__init__(got)
        self.expected = expected


def read(body: memoryview) -> Wav:
    """Return format and samples of a file that begins with RIFF, RF64 or BW64. Raises Unreadable.

    A file whose end is missing has the frames that are there. Chunks other than fmt, ds64 and data
    are skipped.
    """
    form: tuple[Literal["integer", "float"], int, int, int] | None = None
    data_size = _UNKNOWN
    at = 12
    for _ in range(CHUNKS_MAX):
        if at + _HEAD.size > len(body):
            raise Unreadable(
                "a file without a data chunk" if form else "a file without a fmt chunk"
            )
        name, size = _HEAD.unpack_from(body, at)
        at += _HEAD.size
        if name == b"data":
            break
        chunk = body[at : at + size]
        if name == b"fmt ":
            form = _format(chunk)
        elif name == b"ds64" and len(chunk) >= _SIZES.size:
            data_size = _SIZES.unpack_from(chunk)[1]
        at += size + _padding(body, at + size, size)
    else:
        raise Unreadable(f"more than {CHUNKS_MAX} chunks before the samples")
    if form is None:
        raise Unreadable("a data chunk before the fmt chunk")
    if size == _UNKNOWN:
        size = data_size
    elif not size and _is_unfinished(body, at):
        size = len(body)
    kind, width, channels, rate_hz = form
    rest = min(size, len(body) - at)
    return Wav(kind, width, channels, rate_hz, body[at : at + rest - rest % (width * channels)])


def _padding(body: memoryview, end: int, size: int) -> int:
    """Return the padding behind a chunk of odd size, which some programs leave out."""
    return size & 1 and bytes(body[end : end + 4]) not in (b"fmt ", b"data", b"LIST", b"fact")


def _is_unfinished(body: memoryview, start: int) -> bool:
    """Whether the sizes were never written, because the file was a stream: no data, and a RIFF
    chunk that is empty, unbounded, or ends where the samples start."""
    whole = _HEAD.unpack_from(body)[1]
    return whole in (0, _UNKNOWN) or _HEAD.size + whole <= start


def _format(chunk: memoryview) -> tuple[Literal["integer", "float"], int, int, int]:
    """Return kind and width of samples, channels and rate."""
    if len(chunk) < _FORMAT.size:
        raise Unreadable(f"a fmt chunk of {len(chunk)} bytes")
    tag, channels, rate_hz, _, block, bits = _FORMAT.unpack_from(chunk)
    if tag == _EXTENSIBLE:
        if len(chunk) < _FORMAT.size + _EXTENSION.size:
            raise Unreadable(f"a fmt chunk of {len(chunk)} bytes, too short for WAVE_EXTENSIBLE")
        *_, tag, end = _EXTENSION.unpack_from(chunk, _FORMAT.size)
        if end != _GUID_END:
            raise Unreadable(f"a sub-format of another vendor; {_REMEDY}")
    if not channels or not rate_hz:
        raise Unreadable(f"{channels} channels at {rate_hz} Hz")
    if tag not in (_PCM, _FLOAT):
        got = f"{_NAMES.get(tag, f'format {tag:#06x}')}; {_REMEDY}"
        raise Unreadable(got, "PCM or float samples")
    wanted = (32, 64) if tag == _FLOAT else range(1, BITS_MAX + 1)
    if bits not in wanted:
        kind = "float samples of 32 or 64" if tag == _FLOAT else f"PCM of 1 to {BITS_MAX}"
        raise Unreadable(f"{bits} bits", f"{kind} bits")
    width = (bits + 7) // 8
    if tag == _PCM and block % channels == 0 and width < block // channels <= BITS_MAX // 8:
        width = block // channels
    return ("float" if tag == _FLOAT else "integer"), width, channels, rate_hz
