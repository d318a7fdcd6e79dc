"""Pixels of PNG files."""

from __future__ import annotations

import zlib

import pytest

from runtime_image.server.golden.png import Pixels, read_png
from tests.support.golden import chunk, head, png

SAMPLES = bytes((x * 37 + y * 11) % 256 for y in range(5) for x in range(12))


@pytest.mark.parametrize("kind", range(5))
def test_all_filters_are_undone(kind: int) -> None:
    """Each row says which of the five it has."""
    assert read_png(png(4, 5, SAMPLES, kind=kind)) == Pixels(4, 5, 3, SAMPLES)


def test_pixels_are_those_of_another_reader(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Pillow chooses filters by itself."""
    images = pytest.importorskip("PIL.Image")
    path = tmp_path / "a.png"
    images.effect_noise((24, 16), 60).convert("RGB").save(path)

    assert read_png(path.read_bytes()).samples == images.open(path).tobytes()


SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"GIF89a", "a PNG file"),
        (SIGNATURE, "a header of 13 bytes, got 0"),
        (SIGNATURE + head(1, 1, depth=16), "8 bits"),
        (SIGNATURE + head(1, 1, colour=3), "8 bits"),
        (SIGNATURE + head(1, 1, interlace=1), "8 bits"),
        (SIGNATURE + head(0, 1), "at most"),
        (SIGNATURE + head(2**31, 2**31), "at most"),
        (SIGNATURE + head(1, 1) + chunk(b"IDAT", b"xx"), "compressed rows"),
        (SIGNATURE + head(1, 1) + chunk(b"IDAT", zlib.compress(b"\0")), "4 bytes of rows, got 1"),
        (SIGNATURE + head(1, 1) + chunk(b"IDAT", zlib.compress(b"\x05\0\0\0")), "a filter"),
        (SIGNATURE + b"\xff\xff\xff\xffIDAT", "a header"),
    ],
)
def test_other_files_are_refused(data: bytes, told: str) -> None:
    """By what was expected; nothing is allocated by what a header says."""
    with pytest.raises(ValueError, match=told):
        read_png(data)


def test_a_bomb_stays_small() -> None:
    """Only the rows of the picture are unpacked."""
    packed = zlib.compress(bytes(50_000_000))
    data = SIGNATURE + head(1, 1) + chunk(b"IDAT", packed)

    assert read_png(data).samples == bytes(3)
