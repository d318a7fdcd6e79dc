"""Reduces a JPEG to the segments that decide over its pixels.

Source: ITU-T T.81, annex B: segments are a marker and, before the first scan, a length and data.
Of the application segments, only those of JFIF and Adobe name the colours.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from runtime_image.codecs.png import (
    CHUNKS_MAX,
    TRIED_MAX,
    Reduced,
    TooManyChunks,
    in_one_pixel,
    make_chunk,
)

START: Final = b"\xff\xd8"
_HEAD: Final = Struct(">BBH")
_APP0, _APP1, _APP14, _APP15, _COMMENT, _SCAN = 0xE0, 0xE1, 0xEE, 0xEF, 0xFE, 0xDA
_WHOLE: Final = {_APP0: (b"JFIF\0", 16), _APP14: (b"Adobe", 14)}
"""Names of the segments that name the colours, and their least length."""
_METADATA: Final = (
    (b"Exif\0\0", b"eXIf", b""),
    (b"http://ns.adobe.com/xap/1.0/\0", b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0"),
)
"""What APP1 begins with, the chunk of a PNG for the same, and what that begins with."""


def reduce(body: memoryview) -> Reduced:
    """Return what a decoder needs of a JPEG. Raises TooManyChunks.

    What is wrong with the rest, the decoder finds.
    """
    parts: list[memoryview] = [body[: len(START)]]
    oriented: list[bytes] = []
    at = len(START)
    for _ in range(CHUNKS_MAX):
        if at + _HEAD.size > len(body):
            break
        fill, marker, size = _HEAD.unpack_from(body, at)
        if fill == marker == 0xFF:
            at += 1
            continue
        end = at + 2 + size
        if fill != 0xFF or marker == _SCAN or size < 2 or end > len(body):
            break
        if _is_needed(marker, body[at + 4 : end]):
            parts.append(body[at:end])
        elif marker == _APP1 and len(oriented) < TRIED_MAX:
            oriented += _oriented(bytes(body[at + 4 : end]))
        at = end
    else:
        raise TooManyChunks
    return Reduced(b"".join([*parts, body[at:]]), oriented)


def _is_needed(marker: int, data: memoryview) -> bool:
    if marker in _WHOLE:
        name, least = _WHOLE[marker]
        return len(data) + 2 >= least and bytes(data[: len(name)]) == name
    return not (_APP0 < marker <= _APP15 or marker == _COMMENT)


def _oriented(data: bytes) -> list[bytes]:
    """Return EXIF or XMP as a PNG has them."""
    for name, chunk, start in _METADATA:
        if data.startswith(name):
            return [in_one_pixel(make_chunk(chunk, start + data[len(name) :]))]
    return []
