"""The wire form of a ModelInferRequest, split without parsing it. Pure.

Clients repeat the same request with other tensors. Its head, which is all but the id and the raw
tensors, is therefore cut out as bytes, by which a parsed head can be found again; the tensors stay
where they are in memory. Protocol Buffers Encoding: a message is a sequence of fields, each a tag
(number and wire type) and a value; strings, bytes and messages are a length and that many bytes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from registry.errors import BadRequest

FIELDS_MAX: Final = 4096
"""Max fields of a request: inputs, outputs, parameters and tensors together. Each takes some ten
bytes in memory for the two that it may have on the wire."""
ID_MAX: Final = 1024
"""Max bytes of a request's id."""
_ID: Final = 0x1A
_RAW: Final = 0x3A
_HEAD: Final = frozenset({0x0A, 0x12, 0x22, 0x2A, 0x32})
"""Tags of model_name, model_version, parameters, inputs and outputs."""
_VARINT_BYTES_MAX: Final = 5


class Split(NamedTuple):
    """A request in parts. `head`: all other fields; `id`: UTF-8; `raw`: the items of
    raw_input_contents."""

    head: bytes
    id: bytes
    raw: list[memoryview]


class NotPlain(Exception):
    """The message has fields or a form that only a complete parser reads."""


def split(data: bytes) -> Split:
    """Split a message.

    Raises NotPlain, and BadRequest if the message has too many fields for any reader.
    """
    head: list[bytes] = []
    raw: list[memoryview] = []
    ident: bytes | None = None
    view = memoryview(data)
    at = kept_from = 0
    for _ in range(FIELDS_MAX):
        if at == len(data):
            break
        tag, value, after = _field_at(data, at)
        if tag == _RAW:
            raw.append(view[value:after])
        elif tag == _ID and ident is None and after - value <= ID_MAX:
            ident = data[value:after]
        elif tag in _HEAD:
            at = after
            continue
        else:
            raise NotPlain
        if kept_from < at:
            head.append(data[kept_from:at])
        at = kept_from = after
    if at != len(data):
        raise BadRequest(f"expected at most {FIELDS_MAX} fields in a request, got more")
    if kept_from < at:
        head.append(data[kept_from:])
    return Split(head[0] if len(head) == 1 else b"".join(head), ident or b"", raw)


def _field_at(data: bytes, at: int) -> tuple[int, int, int]:
    """Return the tag of the field at `at`, and where its value begins and ends.

    Raises NotPlain for a field that is cut off.
    """
    try:
        tag, length, value = data[at], data[at + 1], at + 2
        if length > 127:
            length, value = varint(data, at + 1, _VARINT_BYTES_MAX)
    except IndexError:
        raise NotPlain from None
    after = value + length
    if after > len(data):
        raise NotPlain
    return tag, value, after


def varint(data: bytes, at: int, most: int) -> tuple[int, int]:
    """Return the number at `at`, of at most `most` bytes, and the place behind it. Raises
    IndexError, and NotPlain."""
    number = 0
    for shift in range(most):
        byte = data[at + shift]
        number |= (byte & 127) << 7 * shift
        if byte < 128:
            return number, at + shift + 1
    raise NotPlain


def field(tag: int, length: int) -> bytes:
    """Return tag and length of a field of `length` bytes; `tag` has one byte."""
    out = bytearray((tag,))
    while length > 127:
        out.append(length & 127 | 128)
        length >>= 7
    out.append(length)
    return bytes(out)
