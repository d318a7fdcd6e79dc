"""Bodies in NumPy's npy format, one tensor each, read without numpy and without pickle.

Source: NumPy's NEP 1 and `numpy.lib.format`: magic, version, little-endian header length (2 bytes
in version 1.0, 4 in 2.0 and 3.0), then a Python dict literal with descr, fortran_order and shape.
"""

from __future__ import annotations

import re
from typing import Final

from runtime_image.codecs.tensor.checks import (
    RawInput,
    bad_body,
    check_names,
    from_binary,
    shorten,
)
from runtime_image.contract import dtypes
from runtime_image.contract.errors import bad_input
from runtime_image.contract.signature import Signature

HEADER_MAX: Final = 4096
"""Bytes. NumPy writes 118 for small ranks; int() of as many digits stays cheap."""
_MAGIC: Final = b"\x93NUMPY"
_LENGTH_BYTES: Final = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}
# Three entries in any order. Possessive quantifiers: a hostile header is never tried twice.
_HEADER: Final = re.compile(
    r"""\s*+\{\s*+(?:(?:
        ['"]descr['"]\s*+:\s*+(?:'(?P<descr>[^'\\]*+)'|(?P<fields>\[))
        |['"]fortran_order['"]\s*+:\s*+(?P<fortran>True|False)
        |['"]shape['"]\s*+:\s*+\((?P<shape>[\d,\s]*+)\)
    )\s*+,?+\s*+){3}\}\s*+""",
    re.VERBOSE | re.ASCII,
)


def read(body: memoryview, signature: Signature, name: str = "") -> dict[str, RawInput]:
    """The tensor as input `name`, or as the only input; raises BAD_INPUT."""
    if not name and len(signature.inputs) == 1:
        name = signature.inputs[0].name
    if not name:
        names = ", ".join(spec.name for spec in signature.inputs) or "no input at all"
        raise bad_body(f"an application/x-npy body for one input, of: {names}", "no input=NAME")
    check_names([name], signature)
    header, data = _split(body)
    dtype, shape = _describe(name, header)
    return {name: from_binary(signature.inputs[0], dtype, shape, data)}


def _split(body: memoryview) -> tuple[str, memoryview]:
    if bytes(body[:6]) != _MAGIC:
        raise bad_body("an npy file, which begins with \\x93NUMPY", "other bytes")
    version = bytes(body[6:8])
    width = _LENGTH_BYTES.get(version)
    if width is None:
        raise bad_body("npy version 1.0, 2.0 or 3.0", f"version bytes {version.hex() or 'missing'}")
    start = 8 + width
    length = int.from_bytes(body[8:start], "little")
    if length > HEADER_MAX or len(body) < start + length:
        at_most = min(HEADER_MAX, max(0, len(body) - start))
        raise bad_body(f"an npy header of at most {at_most} bytes", f"{length} bytes")
    # latin-1 decodes any byte; names beyond ASCII occur only in structured dtypes, refused below.
    return str(body[start : start + length], "latin-1"), body[start + length :]


def _describe(name: str, header: str) -> tuple[str, tuple[int, ...]]:
    found = _HEADER.fullmatch(header)
    if found is None or None in (found["fortran"], found["shape"]):
        raise bad_input(
            name, "an npy header with descr, fortran_order and shape", repr(shorten(header))
        )
    dtype = dtypes.FROM_NPY.get(found["descr"] or "")
    if dtype is None:
        known = ", ".join(dtypes.FROM_NPY)
        got = found["descr"] or "a structured dtype"
        raise bad_input(name, f"an npy descr of: {known}", shorten(got))
    if found["fortran"] == "True":
        raise bad_input(name, "C order (numpy.ascontiguousarray)", "fortran_order: True")
    sizes = [size.strip() for size in found["shape"].split(",")]
    if sizes[-1] == "":
        sizes.pop()
    if not all(size.isdecimal() for size in sizes):
        raise bad_input(name, "an npy shape of integers", f"({shorten(found['shape'])})")
    return dtype, tuple(int(size) for size in sizes)
