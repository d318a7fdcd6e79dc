"""The number of fields in a message, counted before it is parsed. Pure.

A parsed field may take fifty times its two bytes on the wire, and while protobuf parses nothing
else runs. Protocol Buffers Encoding: a field is a tag and a value; of the lengths that a tag names,
those of messages have fields inside.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.grpc.wire import NotPlain, varint
from registry.errors import BadRequest

PARSED_MAX: Final = 65_536
"""Max fields of a message that is parsed, those of its messages included: some 10 ms."""
_VARINT_BYTES_MAX: Final = 10
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}

Nested = dict[int, Any]
"""For each field that is a message its number and the same table of that message."""


def nested_of(descriptor: Any) -> Nested:
    """Return the table of a message by its descriptor; messages of this protocol do not recur."""
    return {
        one.number: nested_of(one.message_type)
        for one in descriptor.fields
        if one.message_type is not None
    }


def check_fields(data: bytes, nested: Nested) -> None:
    """Raise BadRequest for a message of more than PARSED_MAX fields, or a malformed one."""
    try:
        _count(data, nested)
    except (IndexError, NotPlain):
        raise BadRequest("expected a message, got one that is cut off") from None


def _count(data: bytes, nested: Nested) -> None:
    """Raise IndexError or NotPlain for a message that is cut off, and BadRequest as above."""
    left = PARSED_MAX
    waiting = [(0, len(data), nested)]
    while waiting:
        at, end, table = waiting.pop()
        while at < end:
            left -= 1
            if left < 0:
                text = f"expected at most {PARSED_MAX} fields in a message, got more"
                raise BadRequest(f"{text}: send tensors in raw_input_contents")
            tag, at = varint(data, at, _VARINT_BYTES_MAX)
            kind = tag & 7
            if kind == _LENGTH:
                length, at = varint(data, at, _VARINT_BYTES_MAX)
                inner = table.get(tag >> 3)
                if inner is not None:
                    waiting.append((at, at + length, inner))
                at += length
            elif kind == _VARINT:
                _, at = varint(data, at, _VARINT_BYTES_MAX)
            else:
                at += _FIXED.get(kind, 0)
        if at != end:
            raise NotPlain
