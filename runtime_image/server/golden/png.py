"""Pixels of small PNG files (ISO/IEC 15948), with the standard library alone.

8 bits a sample, not interlaced, without a palette: what libraries write for generated pictures.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
SAMPLES_MAX: Final = 2**18
"""Max numbers of a picture, width x height x channels: 0.3 s of Python at most."""
CHUNKS_MAX: Final = 10_000
_CHANNELS: Final = {0: 1, 2: 3, 4: 2, 6: 4}
"""Channels by colour type: grey, RGB, grey and alpha, RGB and alpha."""
_HEADER: Final = struct.Struct(">IIBBBBB")


class Pixels(NamedTuple):
    """A decoded picture: one number from 0 to 255 for each channel of each pixel, by rows."""

    width: int
    height: int
    channels: int
    samples: bytes


def read_png(data: bytes) -> Pixels:
    """Decode a PNG file. Raises ValueError with what was expected and what came."""
    if not data.startswith(SIGNATURE):
        raise ValueError("expected a PNG file")
    header, packed = _chunks(data)
    if len(header) != _HEADER.size:
        raise ValueError(f"expected a header of {_HEADER.size} bytes, got {len(header)}")
    width, height, depth, colour, _, _, interlace = _HEADER.unpack(header)
    channels = _CHANNELS.get(colour, 0)
    if depth != 8 or not channels or interlace:
        raise ValueError("expected 8 bits a sample, no palette and no interlace")
    size = width * height * channels
    if not 0 < size <= SAMPLES_MAX:
        raise ValueError(f"expected at most {SAMPLES_MAX} numbers, got {size}")
    stride = width * channels
    filtered = _inflated(packed, height * (stride + 1))
    return Pixels(width, height, channels, _unfiltered(filtered, height, stride, channels))


def _chunks(data: bytes) -> tuple[bytes, bytes]:
    """Return the content of IHDR and of all IDAT. Sums are not checked: a flipped bit shows in the
    pixels."""
    at, header, parts = len(SIGNATURE), b"", []
    for _ in range(CHUNKS_MAX):
        if at + 8 > len(data):
            break
        length, kind = int.from_bytes(data[at : at + 4]), data[at + 4 : at + 8]
        content = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            header = content
        elif kind == b"IDAT":
            parts.append(content)
        elif kind == b"IEND":
            break
        at += 12 + length
    return header, b"".join(parts)


def _inflated(packed: bytes, size: int) -> bytes:
    try:
        found = zlib.decompressobj().decompress(packed, size)
    except zlib.error as error:
        raise ValueError(f"expected compressed rows: {error}") from error
    if len(found) != size:
        raise ValueError(f"expected {size} bytes of rows, got {len(found)}")
    return found


def _unfiltered(data: bytes, height: int, stride: int, channels: int) -> bytes:
    """Undo the filter of each row (section 9 of the standard)."""
    out = bytearray()
    above = bytearray(stride)
    for number in range(height):
        begin = number * (stride + 1)
        row = bytearray(data[begin + 1 : begin + 1 + stride])
        _undo(data[begin], row, above, channels)
        out += row
        above = row
    return bytes(out)


def _undo(kind: int, row: bytearray, above: bytearray, channels: int) -> None:
    if kind == 0:
        return
    if kind not in (1, 2, 3, 4):
        raise ValueError(f"expected a filter from 0 to 4, got {kind}")
    for i in range(len(row)):
        left = row[i - channels] if i >= channels else 0
        up = above[i]
        if kind == 1:
            added = left
        elif kind == 2:
            added = up
        elif kind == 3:
            added = (left + up) // 2
        else:
            added = _paeth(left, up, above[i - channels] if i >= channels else 0)
        row[i] = (row[i] + added) & 0xFF


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    by_left, by_up, by_corner = abs(guess - left), abs(guess - up), abs(guess - corner)
    if by_left <= by_up and by_left <= by_corner:
        return left
    return up if by_up <= by_corner else corner
