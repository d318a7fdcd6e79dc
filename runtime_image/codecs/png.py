"""Reduces a PNG to the chunks that decide over its pixels, so that no other chunk can spoil them.

Source: Portable Network Graphics, Third Edition: chunks are a length, a name, data and a CRC; those
with a small first letter are ancillary. Of these only tRNS changes pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Final
from zlib import compress, crc32

CHUNKS_MAX: Final = 100_000
SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_HEAD: Final = Struct(">I4s")
_HEADER: Final = Struct(">IIBB")
_CRC_BYTES: Final = 4
_GREY, _COLOUR, _PALETTE = 0, 2, 3
_TEXTS: Final = (b"tEXt", b"zTXt", b"iTXt")
_ORIENTED: Final = (b"Raw profile type exif\0", b"XML:com.adobe.xmp\0")
"""Keywords of texts that may have the orientation."""
TRIED_MAX: Final = 4
"""Max chunks that are searched for an orientation."""
_TRNS_MAX: Final = 256


class TooManyChunks(Exception):
    """The file has more than CHUNKS_MAX chunks."""


@dataclass(slots=True)
class Reduced:
    """A picture of the same pixels. `oriented`: what may contain an EXIF orientation, each in a PNG
    of one pixel. `clear`: the grey of 16 bits that is transparent, which Pillow loses."""

    body: memoryview | bytes
    oriented: list[bytes] = field(default_factory=list)
    clear: int | None = None


def reduce(body: memoryview) -> Reduced:
    """Return what a decoder needs of a PNG. Raises TooManyChunks.

    An unreadable tRNS is left out, like every other ancillary chunk. What is wrong with the rest,
    the decoder finds.
    """
    found = Reduced(body)
    parts: list[memoryview | bytes] = [body[: len(SIGNATURE)]]
    depth, colour, entries = 0, 0, 0
    for name, chunk in _chunks(body):
        data = chunk[_HEAD.size : -_CRC_BYTES]
        if name == b"IHDR" and len(data) >= _HEADER.size:
            _, _, depth, colour = _HEADER.unpack_from(data)
        elif name == b"PLTE":
            entries = len(data) // 3
        if not name or not name[0] & 0x20:
            parts.append(chunk)
        elif name == b"tRNS" and _is_intact(chunk):
            value = _transparency(bytes(data[: _TRNS_MAX + 1]), depth, colour, entries)
            if value and (depth, colour) == (16, _GREY):
                found.clear = int.from_bytes(value, "big")
            elif value:
                parts.append(make_chunk(name, value))
        elif _may_orient(name, data) and len(found.oriented) < TRIED_MAX:
            found.oriented.append(in_one_pixel(chunk))
    found.body = b"".join(parts)
    return found


def _chunks(body: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield name and bytes of each chunk up to IEND; what is no chunk is one without a name."""
    at = len(SIGNATURE)
    for _ in range(CHUNKS_MAX):
        if at + _HEAD.size > len(body):
            return
        size, name = _HEAD.unpack_from(body, at)
        end = at + _HEAD.size + size + _CRC_BYTES
        if end > len(body) or not name.isalpha():
            yield b"", body[at:]
            return
        yield name, body[at:end]
        if name == b"IEND":
            return
        at = end
    raise TooManyChunks


def _is_intact(chunk: memoryview) -> bool:
    start, end = _HEAD.size - 4, len(chunk) - _CRC_BYTES
    return crc32(chunk[start:end]) == int.from_bytes(chunk[end:], "big")


def _transparency(value: bytes, depth: int, colour: int, entries: int) -> bytes:
    """Return tRNS with samples of 8 bits, as Pillow compares them, but of 16 bits for grey of 16;
    b"" if it does not fit the picture."""
    if colour == _PALETTE:
        return value if len(value) <= entries else b""
    if (colour, len(value)) not in ((_GREY, 2), (_COLOUR, 6)):
        return b""
    samples = [int.from_bytes(value[at : at + 2], "big") for at in range(0, len(value), 2)]
    most = (1 << depth) - 1 or 1
    if depth == 16 and colour == _COLOUR:
        # Pillow keeps the upper byte of each sample only.
        samples = [sample >> 8 for sample in samples]
    elif depth in (2, 4):
        samples = [(sample & most) * 255 // most for sample in samples]
    else:
        samples = [sample & most for sample in samples]
    return b"".join(sample.to_bytes(2, "big") for sample in samples)


def _may_orient(name: bytes, data: memoryview) -> bool:
    return name == b"eXIf" or (
        name in _TEXTS and any(bytes(data[: len(word)]) == word for word in _ORIENTED)
    )


def make_chunk(name: bytes, data: bytes) -> bytes:
    """Return a chunk with its length and CRC."""
    return _HEAD.pack(len(data), name) + data + crc32(data, crc32(name)).to_bytes(4, "big")


_HEADER_OF_ONE: Final = make_chunk(b"IHDR", bytes.fromhex("00000001000000010800000000"))
_PIXEL_OF_ONE: Final = make_chunk(b"IDAT", compress(b"\0\0"))


def in_one_pixel(chunk: memoryview | bytes) -> bytes:
    """Return a PNG of one pixel with this chunk."""
    end = make_chunk(b"IEND", b"")
    return b"".join((SIGNATURE, _HEADER_OF_ONE, chunk, _PIXEL_OF_ONE, end))
