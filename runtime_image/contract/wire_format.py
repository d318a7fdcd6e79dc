"""Fields of messages in protobuf's wire format, with a bound on their number.

Source: protobuf.dev, "Encoding". Values are not copied, so that a model of gigabytes costs a few
page reads.
"""

from __future__ import annotations

import mmap
from collections.abc import Container, Iterator
from typing import Final

from runtime_image.contract.wire_runs import last_of_run

FIELDS_MAX: Final = 20_000_000
"""Max parsed fields: 30 times those of the largest graphs; a limit for hostile files. Elements of
one repeated field count as one, see `WireReader.fields`."""
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
_VARINT_BYTES: Final = 10

Field = tuple[int, int, int, int]
"""Number, span of a length-delimited value, and value of a varint. The span of other types is
(0, 0), which no value has."""


_TAG_MAX: Final = 2**32
"""Tags have 32 bits. Readers that cut larger ones see another field than readers that do not."""


class BeyondLimit(ValueError):
    """A file exceeds a limit of ours; it may be right otherwise."""


class TooManyFields(BeyondLimit):
    """A file, or several together, have more fields than may be parsed."""


class WireReader:
    """Reader of one file. Raises ValueError for bytes that are no message of ONNX, and
    TooManyFields beyond `fields_max` fields."""

    def __init__(self, data: mmap.mmap, fields_max: int) -> None:
        self._data = data
        self._fields_max = fields_max
        self._fields = 0

    @property
    def parsed(self) -> int:
        """Fields parsed so far."""
        return self._fields

    def fields(self, start: int, end: int, wanted: Container[int] | None = None) -> Iterator[Field]:
        """Yield the fields of the message at a span. Of numbers, fields of one tag that follow each
        other count as one, and the last may stand for all; so it does of other values that are not
        `wanted`, if that is given."""
        at = start
        before = 0
        while at < end:
            self._fields += 1
            if self._fields > self._fields_max:
                raise TooManyFields(f"expected at most {self._fields_max} fields, got more")
            begin = at
            tag, at = self._varint(at, end)
            if tag == before and (tag & 7 != _LEN or _is_unwanted(tag >> 3, wanted)):
                _, at = self._varint(last_of_run(self._data, tag, begin, end), end)
            before = tag
            if tag >= _TAG_MAX:
                raise ValueError(f"byte {at}: a tag has more than 32 bits")
            number, wire = tag >> 3, tag & 7
            value = first = last = 0
            if wire == _LEN:
                length, first = self._varint(at, end)
                at = last = first + length
            elif wire == _VARINT:
                value, at = self._varint(at, end)
            elif wire in (_I64, _I32):
                at += 8 if wire == _I64 else 4
            else:
                raise ValueError(f"byte {at}: wire type {wire} is not used by ONNX")
            if number == 0 or at > end:
                raise ValueError(f"byte {at}: truncated, or not protobuf")
            yield number, first, last, value

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = 0
        for index in range(_VARINT_BYTES):
            if at + index >= end:
                raise ValueError(f"byte {at}: truncated")
            byte = self._data[at + index]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value, at + index + 1
        raise ValueError(f"byte {at}: a number is longer than {_VARINT_BYTES} bytes")


def _is_unwanted(number: int, wanted: Container[int] | None) -> bool:
    return wanted is not None and number not in wanted
