"""Opens pictures for decoding, without NumPy. Pillow is imported when the first one arrives."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, Final

from runtime_image.codecs import jpeg, png
from runtime_image.codecs.raw import PICTURES
from runtime_image.contract.errors import RequestError, bad_input

PIXELS_MAX: Final = 50_000_000
"""Max pixels of a picture that is decoded; a small file may expand to gigabytes."""
_PNG_END: Final = re.compile(rb"IEND\xaeB`\x82")
"""Type and checksum of the chunk that ends a PNG (PNG specification, 11.2.5). Checked separately,
because Pillow stops after the last row and does not read the checksum behind it."""


def upright(name: str, body: memoryview) -> Any:
    """Return a decoded picture, turned as its EXIF orientation says; raises BAD_INPUT.

    Only the first frame of an animation is decoded, and no other metadata are read.
    """

    def decoded(picture: Any, _clear: int | None) -> Any:
        picture.load()
        return picture

    return opened(name, body, decoded)


def opened(name: str, body: memoryview, decode: Callable[[Any, int | None], Any]) -> Any:
    """Return what `decode` makes of a picture, turned upright; raises BAD_INPUT.

    `decode` gets the picture, not decoded yet, and the grey of 16 bits that is transparent, if any.
    """
    from PIL import Image

    try:
        picture, turn, clear = _decoder(name, body)
        _check_pixels(name, picture.size)
        picture = decode(picture, clear)
        return picture if turn is None else picture.transpose(turn)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise bad_input(name, f"a picture of at most {PIXELS_MAX} pixels", "far more") from None
    except png.TooManyChunks:
        got = f"one of more than {png.CHUNKS_MAX} chunks"
        raise bad_input(name, "an intact picture", got) from None
    except RequestError:
        raise
    except Exception as error:  # noqa: BLE001  # Pillow's decoders raise anything on damaged files
        raise bad_input(name, "an intact picture", f"a damaged one: {error}") from None


def _decoder(name: str, body: memoryview) -> tuple[Any, Any, int | None]:
    """Return a picture that is not decoded yet, how to turn it upright, and the grey of 16 bits
    that is transparent."""
    from PIL import Image

    if bytes(body[: len(png.SIGNATURE)]) == png.SIGNATURE:
        if _PNG_END.search(body) is None:
            raise bad_input(name, "an intact picture", "a PNG that is cut off: its end is missing")
        found = png.reduce(body)
    elif bytes(body[: len(jpeg.START)]) == jpeg.START:
        found = jpeg.reduce(body)
    else:
        picture = Image.open(BytesIO(body), formats=PICTURES)
        return picture, _turn([picture]), None
    turn = _turn([BytesIO(one) for one in found.oriented])
    return Image.open(BytesIO(found.body), formats=PICTURES), turn, found.clear


def _check_pixels(name: str, size: tuple[int, int]) -> None:
    width, height = size
    if width * height > PIXELS_MAX:
        raise bad_input(
            name, f"a picture of at most {PIXELS_MAX} pixels", f"{width} x {height} pixels"
        )


def _turn(sources: Sequence[Any]) -> Any:
    """Return how to turn a picture upright by its EXIF orientation, None if no source has one that
    can be read. `sources`: pictures, or files of pictures."""
    from PIL import ExifTags, Image

    turns = Image.Transpose
    for source in sources:
        try:
            picture = (
                source if isinstance(source, Image.Image) else Image.open(source, "r", ["PNG"])
            )
            orientation = picture.getexif().get(ExifTags.Base.Orientation)
        except Exception:  # noqa: BLE001, S112  # damaged metadata say nothing about the pixels
            continue
        if orientation is not None:
            return {
                2: turns.FLIP_LEFT_RIGHT,
                3: turns.ROTATE_180,
                4: turns.FLIP_TOP_BOTTOM,
                5: turns.TRANSPOSE,
                6: turns.ROTATE_270,
                7: turns.TRANSVERSE,
                8: turns.ROTATE_90,
            }.get(orientation)
    return None
