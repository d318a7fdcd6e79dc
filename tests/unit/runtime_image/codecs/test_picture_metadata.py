"""Metadata of a picture, broken or not, do not decide over its pixels; transparency does."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zlib
from collections.abc import Sequence

import numpy as np
import pytest
from PIL import Image

from runtime_image.codecs import media, png
from runtime_image.contract.errors import RequestError
from runtime_image.contract.model import ImageForm

GREY, COLOUR, PALETTE, GREY_ALPHA, COLOUR_ALPHA = 0, 2, 3, 4, 6
DEPTHS = {GREY: (1, 2, 4, 8, 16), COLOUR: (8, 16), PALETTE: (1, 2, 4, 8),
          GREY_ALPHA: (8, 16), COLOUR_ALPHA: (8, 16)}  # fmt: skip
KINDS = [(colour, depth) for colour, depths in DEPTHS.items() for depth in depths]
SAMPLES = {GREY: 1, COLOUR: 3, PALETTE: 1, GREY_ALPHA: 2, COLOUR_ALPHA: 4}
PALETTE_COLOURS = bytes.fromhex("0a141e 28323c")
SIZE = 8


def chunk(name: bytes, data: bytes, crc: int | None = None) -> bytes:
    crc = zlib.crc32(name + data) if crc is None else crc
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", crc)


def file(
    colour: int, depth: int, rows: Sequence[bytes], *extra: bytes, after: bytes = b""
) -> memoryview:
    """Return a PNG with chunks before and after its pixels."""
    parts = [
        png.SIGNATURE,
        chunk(b"IHDR", struct.pack(">IIBBBBB", SIZE, SIZE, depth, colour, 0, 0, 0)),
    ]
    if colour == PALETTE:
        parts.append(chunk(b"PLTE", PALETTE_COLOURS))
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    parts += [*extra, chunk(b"IDAT", pixels), after, chunk(b"IEND", b"")]
    return memoryview(b"".join(parts))


def row(colour: int, depth: int, *pixels: Sequence[int]) -> bytes:
    """Return eight pixels, which repeat `pixels`."""
    samples = [one for at in range(SIZE) for one in pixels[at % len(pixels)]]
    bits = "".join(f"{one:0{depth}b}" for one in samples)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def decode(body: memoryview, mode: str = "RGB") -> np.ndarray:
    form = ImageForm((SIZE, SIZE), mode, "HWC", scale=1.0)
    return media.decode_image("x", body, form)[0]


def pixels(colour: int, depth: int) -> tuple[list[int], list[int], list[list[int]]]:
    """Return two pixels of a kind, and the 8-bit colours that they are."""
    most = (1 << depth) - 1
    if colour == PALETTE:
        return [0], [1], [[10, 20, 30], [40, 50, 60]]
    one = [most // 3 + at for at in range(SAMPLES[colour])]
    other = [most - at for at in range(SAMPLES[colour])]
    if colour in (GREY_ALPHA, COLOUR_ALPHA):
        one[-1] = other[-1] = most
    shown = [[(v >> 8 if depth == 16 else v * 255 // most) for v in p] for p in (one, other)]
    if colour in (GREY, GREY_ALPHA):
        shown = [[p[0]] * 3 for p in shown]
    return one, other, [p[:3] for p in shown]


@pytest.mark.parametrize(("colour", "depth"), KINDS)
def test_transparent_pixels_are_white(colour: int, depth: int) -> None:
    """tRNS makes exactly one colour transparent, at every depth of every colour type that has it;
    one that does not belong there, or is damaged, changes nothing."""
    one, other, shown = pixels(colour, depth)
    rows = [row(colour, depth, one, other)] * SIZE
    plain = decode(file(colour, depth, rows))
    assert np.abs(plain[0, :2] - shown).max() <= 1
    data = b"\0" if colour == PALETTE else b"".join(struct.pack(">H", v) for v in one[:3])
    clear = decode(file(colour, depth, rows, chunk(b"tRNS", data)))
    if colour in (GREY, COLOUR, PALETTE):
        assert (clear[:, ::2] == 255).all()
    else:
        assert np.array_equal(clear, plain)
    assert np.array_equal(clear[:, 1::2], plain[:, 1::2])
    grey = decode(file(colour, depth, rows, chunk(b"tRNS", data)), "L")
    assert np.array_equal(grey[:, ::2] == 255, clear[:, ::2, :1] == 255)
    for wrong in (chunk(b"tRNS", data, 0), chunk(b"tRNS", data + bytes(9)), chunk(b"tRNS", b"")):
        assert np.array_equal(decode(file(colour, depth, rows, wrong)), plain)


def test_transparent_grey_of_sixteen_bits_is_exact() -> None:
    """Only the value of tRNS itself is transparent, not others with the same upper byte."""
    rows = [row(GREY, 16, [0x2828], [0x2829])] * SIZE
    array = decode(file(GREY, 16, rows, chunk(b"tRNS", b"\x28\x28")))
    assert array[0, :2, 0].tolist() == [255, 40]


BOMB = zlib.compress(bytes(80 * 2**20), 9)
BROKEN = {
    "eXIf that is no TIFF": chunk(b"eXIf", b"garbage!"),
    "eXIf cut off": chunk(b"eXIf", b"II*\0"),
    "eXIf empty": chunk(b"eXIf", b""),
    "eXIf far away": chunk(b"eXIf", b"II*\0\xff\xff\xff\x7f"),
    "eXIf without CRC": chunk(b"eXIf", b"II*\0\x08\0\0\0\0\0", 1),
    "iCCP empty": chunk(b"iCCP", b""),
    "iCCP of another method": chunk(b"iCCP", b"a\0\x07zzz"),
    "iCCP bomb": chunk(b"iCCP", b"a\0\0" + BOMB),
    "zTXt bomb": chunk(b"zTXt", b"a\0\0" + BOMB),
    "oriented zTXt bomb": chunk(b"zTXt", b"Raw profile type exif\0\0" + BOMB),
    "zTXt of another method": chunk(b"zTXt", b"a\0\x07zzz"),
    "tEXt empty": chunk(b"tEXt", b""),
    "iTXt bomb": chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + BOMB),
    "tEXt without CRC": chunk(b"tEXt", b"a\0b", 7),
    "gAMA empty": chunk(b"gAMA", b""),
    "cHRM empty": chunk(b"cHRM", b""),
    "sRGB empty": chunk(b"sRGB", b""),
    "pHYs empty": chunk(b"pHYs", b""),
    "acTL empty": chunk(b"acTL", b""),
    "acTL absurd": chunk(b"acTL", b"\xff" * 8),
    "fcTL cut off": chunk(b"fcTL", bytes(5)),
    "fdAT empty": chunk(b"fdAT", b""),
    "private": chunk(b"prVt", bytes(100)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_ancillary_chunks_are_skipped(name: str) -> None:
    """A chunk that is not needed for the pixels does not fail them, before or behind them, in any
    kind of PNG, and is not unfolded."""
    for colour, depth in KINDS if len(BROKEN[name]) < 1000 else KINDS[:1]:
        one, other, _ = pixels(colour, depth)
        rows = [row(colour, depth, one, other)] * SIZE
        plain = decode(file(colour, depth, rows))
        before, behind = (
            file(colour, depth, rows, BROKEN[name]),
            file(colour, depth, rows, after=BROKEN[name]),
        )
        tracemalloc.start()
        try:
            assert np.array_equal(decode(before), plain)
            assert np.array_equal(decode(behind), plain)
            assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
        finally:
            tracemalloc.stop()


def exif(orientation: int) -> bytes:
    found = Image.Exif()
    found[0x0112] = orientation
    return found.tobytes()[6:]


HALF = [row(GREY, 8, [9])] * 4 + [row(GREY, 8, [99])] * 4


def test_an_orientation_is_found_behind_broken_ones() -> None:
    """The first readable orientation counts, wherever it is: in eXIf, a raw profile or XMP."""
    xmp = b'<x tiff:Orientation="3"/>'
    raw = b"\nexif\n%8d\n" % len(b"Exif\0\0" + exif(3)) + (b"Exif\0\0" + exif(3)).hex().encode()
    sources = [
        chunk(b"eXIf", exif(3)),
        chunk(b"tEXt", b"Raw profile type exif\0" + raw),
        chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(raw)),
        chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp),
    ]
    for source in sources:
        for body in (
            file(GREY, 8, HALF, BROKEN["eXIf cut off"], source),
            file(GREY, 8, HALF, after=source),
        ):
            assert decode(body)[:, 0, 0].tolist() == [99] * 4 + [9] * 4


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_unknown_orientation_is_none(orientation: int) -> None:
    """A number that stands for no orientation turns nothing."""
    body = file(GREY, 8, HALF, chunk(b"eXIf", exif(orientation)))
    assert decode(body)[:, 0, 0].tolist() == [9] * 4 + [99] * 4


def test_chunks_are_counted() -> None:
    """A picture of very many empty chunks is refused before it is decoded."""
    with pytest.raises(RequestError, match="more than 100000 chunks"):
        decode(file(GREY, 8, HALF, chunk(b"IDAT", b"") * 100_000))
    with pytest.raises(RequestError, match="more than 100000 chunks"):
        decode(memoryview(b"\xff\xd8" + b"\xff\xfe\0\2" * 100_000))


def jpeg(*segments: tuple[int, bytes]) -> memoryview:
    buffer = io.BytesIO()
    ramp = np.arange(SIZE * SIZE * 3, dtype=np.uint8).reshape(SIZE, SIZE, 3)
    Image.fromarray(ramp).save(buffer, "JPEG")
    whole = buffer.getvalue()
    more = b"".join(
        b"\xff" + struct.pack(">BH", one, len(data) + 2) + data for one, data in segments
    )
    return memoryview(whole[:2] + more + whole[2:])


@pytest.mark.parametrize(
    "segment",
    [
        (0xE0, b"JFIF"), (0xE0, b""), (0xE1, b"Exif\0\0garbage!"), (0xE1, b"Exif\0\0II*\0"),
        (0xE1, b"Exif\0\0II*\0\xff\xff\xff\x7f"), (0xE1, b"http://ns.adobe.com/xap/1.0/\0<bad"),
        (0xE2, b"ICC_PROFILE\0"), (0xE2, b"MPF\0garbage"), (0xEE, b"Adobe"), (0xEF, b""),
        (0xED, b"Photoshop 3.0\x008BIM\x03\xed"), (0xFE, b"\xff\xff"),
    ],
)  # fmt: skip
def test_broken_segments_of_a_jpeg_are_skipped(segment: tuple[int, bytes]) -> None:
    """A segment that is not needed for the pixels does not fail them, nor hides an orientation."""
    plain = decode(jpeg())
    assert np.array_equal(decode(jpeg(segment)), plain)
    xmp = b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="3"/>'
    for data in (b"Exif\0\0" + exif(3), xmp):
        assert np.array_equal(decode(jpeg(segment, (0xE1, data))), plain[::-1, ::-1])
