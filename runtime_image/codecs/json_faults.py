"""The error of a body that is no JSON, which names what many programs write by mistake."""

from __future__ import annotations

import re
from typing import Final

from runtime_image.codecs.tensors import bad_body, shorten
from runtime_image.contract.errors import RequestError

MARKS: Final = {b"\xef\xbb\xbf": "UTF-8", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""Byte order marks, by which a file begins (Unicode Standard, 23.8)."""
_NOT_FINITE: Final = re.compile(rb"-?+(?:nan|inf(?:inity)?+)\b", re.IGNORECASE)
_BYTE: Final = re.compile(r"\(byte (\d{1,18})\)")
_AROUND: Final = 12
"""Bytes before and after the decoder's position that are searched for a literal."""


def bad_json(expected: str, text: bytes | memoryview, error: Exception) -> RequestError:
    """Return the BAD_INPUT error for a text that msgspec refused with `error`."""
    for mark, encoding in MARKS.items():
        if bytes(text[: len(mark)]) == mark:
            got = f"a byte order mark of {encoding} before it: encode as UTF-8 without one"
            return bad_body("JSON that begins with {", got)
    literal = _literal(text, str(error))
    if literal:
        wanted = "JSON, where a float tensor has null for NaN, and only binary data has infinities"
        return bad_body(wanted, literal)
    return bad_body(expected, shorten(str(error)))


def _literal(text: bytes | memoryview, error: str) -> str:
    """Return the NaN or infinity at which the decoder stopped, "" for anything else."""
    found = _BYTE.search(error)
    if found is None:
        return ""
    at = int(found[1])
    start = max(0, at - _AROUND)
    for literal in _NOT_FINITE.finditer(bytes(text[start : at + _AROUND])):
        # The decoder stops up to one byte behind "nan", which begins like null.
        if literal.start() <= at - start <= literal.end() + 1:
            return f"{literal[0].decode()} at byte {start + literal.start()}"
    return ""
