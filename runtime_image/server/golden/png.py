"""Pixels of PNG files (ISO/IEC 15948): 8 bits a sample, not interlaced, without a palette, as
libraries write generated pictures.

By the standard library alone: a defect in a decoder of C would be the server's way into the
sidecar, which has the token of its replica.
"""

from __future__ import annotations

import base64
import struct
import zlib
from itertools import accumulate
from typing import Final, NamedTuple

from runtime_image.contract.samples import SIDE_MAX, Picture, pixel_distance

SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
SAMPLES_MAX: Final = 2**22
"""Max numbers of a picture, width x height x channels: 1024 x 1024 with alpha, 0.7 s of
Python at most."""
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
    if not 0 < size <= SAMPLES_MAX or max(width, height) > SIDE_MAX:
        raise ValueError(
            f"expected at most {SAMPLES_MAX} numbers and {SIDE_MAX} pixels a side, got"
            f" {width} x {height} x {channels}"
        )
    stride = width * channels
    filtered = _inflated(packed, height * (stride + 1))
    return Pixels(width, height, channels, _unfiltered(filtered, height, stride, channels))


def reduced(pixels: Pixels) -> Picture:
    """Return at most PIXELS_MAX of a picture's pixels, at even distances in the order of rows. The
    mean difference of these from those of another picture is close to that of all."""
    width, height, channels, samples = pixels
    distance = pixel_distance(width, height)
    kept = b"".join(samples[channel :: channels * distance] for channel in range(channels))
    return Picture(width, height, channels, base64.b64encode(kept).decode())


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
    """Undo the filter of one row in place; `above` are the numbers of the row before."""
    if kind == 0:
        return
    if kind not in (1, 2, 3, 4):
        raise ValueError(f"expected a filter from 0 to 4, got {kind}")
    if kind == 2:
        row[:] = bytes((value + up) & 0xFF for value, up in zip(row, above, strict=True))
        return
    for channel in range(channels):
        values, ups = row[channel::channels], above[channel::channels]
        if kind == 1:
            row[channel::channels] = bytes(total & 0xFF for total in accumulate(values))
        elif kind == 3:
            row[channel::channels] = _averaged(values, ups)
        else:
            row[channel::channels] = _predicted(values, ups)


def _averaged(values: bytearray, ups: bytearray) -> bytearray:
    """Undo the filter Average for one channel of a row."""
    left, out = 0, bytearray()
    for value, up in zip(values, ups, strict=True):
        left = (value + ((left + up) >> 1)) & 0xFF
        out.append(left)
    return out


def _predicted(values: bytearray, ups: bytearray) -> bytearray:
    """Undo the filter Paeth for one channel of a row: a number was predicted by that of its left,
    upper and upper left neighbour which is nearest to left + upper - upper left."""
    left, corner, out = 0, 0, bytearray()
    for value, up in zip(values, ups, strict=True):
        by_left, by_up = up - corner, left - corner
        by_corner = abs(by_left + by_up)
        by_left, by_up = abs(by_left), abs(by_up)
        if by_left <= by_up and by_left <= by_corner:
            guess = left
        else:
            guess = up if by_up <= by_corner else corner
        left, corner = (value + guess) & 0xFF, up
        out.append(left)
    return out
