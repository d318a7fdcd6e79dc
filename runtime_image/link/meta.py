"""The text fields that travel beside a request and its answer."""

from __future__ import annotations

from typing import NamedTuple

from runtime_image.contract.link import CONTENT_TYPES, META_SEPARATOR
from runtime_image.link.frames import LinkError

FIELD_MAX = 4096
"""Characters per field."""
DIGITS_MAX = 11
"""Of a time in microseconds: a day has eleven."""


class RequestMeta(NamedTuple):
    """What the codecs need of a request's headers. `json_length` is -1 where there is none."""

    content_type: str
    accept: str
    json_length: int
    traceparent: str


class AnswerMeta(NamedTuple):
    """How an answer calls itself, its times in microseconds, and the rows of its batch."""

    content_type: str
    decode_us: int
    batch_us: int
    compute_us: int
    encode_us: int
    rows: int


def pack_request(meta: RequestMeta) -> bytes:
    """Meta of a REQUEST frame; characters outside latin-1 become "?"."""
    length = "" if meta.json_length < 0 else str(meta.json_length)
    fields = (meta.content_type, meta.accept, length, meta.traceparent)
    return META_SEPARATOR.join(field[:FIELD_MAX].encode("latin-1", "replace") for field in fields)


def unpack_request(data: bytes) -> RequestMeta:
    """Raises LinkError where `pack_request` cannot have written it."""
    fields = data.decode("latin-1").split("\n")
    if len(fields) != 4 or not (fields[2] == "" or fields[2].isdecimal()):
        raise LinkError("malformed request meta")
    length = int(fields[2]) if fields[2] else -1
    return RequestMeta(fields[0], fields[1], length, fields[3])


def pack_answer(meta: AnswerMeta) -> bytes:
    """Meta of a RESPONSE frame."""
    numbers = "\n".join(map(str, meta[1:]))
    return f"{meta.content_type}\n{numbers}".encode("latin-1")


def unpack_answer(data: bytes) -> AnswerMeta:
    """Raises LinkError unless the type is on the list and the rest are numbers."""
    fields = data.decode("latin-1").split("\n")
    if len(fields) != 6 or fields[0] not in CONTENT_TYPES:
        raise LinkError("malformed answer meta")
    if not all(field.isdecimal() and len(field) <= DIGITS_MAX for field in fields[1:]):
        raise LinkError("answer times are not numbers")
    return AnswerMeta(fields[0], *map(int, fields[1:]))
