"""Tests of the dashboard's pictures in the documents."""

from __future__ import annotations

import io

from PIL import Image

from tests.support.dashboard.pictures import COLOURS, HEIGHT, IMAGES, SCALE, WIDTH, reduced

BYTES_MAX = 300_000


def test_a_picture_is_reduced_to_a_palette() -> None:
    """A reduced picture keeps its size and has few colours."""
    file = io.BytesIO()
    Image.linear_gradient("L").convert("RGB").save(file, "PNG")

    picture = Image.open(io.BytesIO(reduced(file.getvalue())))

    assert (picture.mode, picture.size) == ("P", (256, 256))
    assert len(picture.getcolors() or []) == COLOURS


def test_the_pictures_are_there_and_small() -> None:
    """The light and the dark picture exist with the same size, and are small together."""
    files = [(IMAGES / f"dashboard-{scheme}.png").read_bytes() for scheme in ("light", "dark")]

    sizes = {Image.open(io.BytesIO(file)).size for file in files}
    assert sizes == {(WIDTH * SCALE, HEIGHT * SCALE)}
    assert sum(map(len, files)) < BYTES_MAX
