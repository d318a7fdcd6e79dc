"""Meta of REQUEST and RESPONSE frames: headers of a request, times of an answer."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

from runtime_image.contract.link import ANSWER_META, CONTENT_TYPES, META_SEPARATOR
from runtime_image.link.frames import LinkError

FIELD_MAX = 4096
"""Characters per field."""
NUMBER_MAX = 2**32 - 1
_KNOWN_MAX = 256
"""Request metas kept in parsed form: clients send the same few again and again."""
_KNOWN_SIZE = 256
"""Bytes of one of them."""
_known: dict[bytes, RequestMeta] = {}


class RequestMeta(NamedTuple):
    """The headers of a request that the codecs need; `json_length` is -1 without that header."""

    content_type: str
    accept: str
    json_length: int
    traceparent: str


class AnswerMeta(NamedTuple):
    """Content type of an answer, its times in microseconds, and the rows of its batch."""

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


pack_known_request = lru_cache(maxsize=1024)(pack_request)
"""`pack_request` with a cache: without a trace, requests have few metas."""


def unpack_request(data: bytes) -> RequestMeta:
    """Meta of a REQUEST frame, parsed. Raises LinkError."""
    meta = _known.get(data)
    if meta is None:
        meta = _parsed(data)
        # A trace never comes twice.
        if not meta.traceparent and len(data) <= _KNOWN_SIZE:
            if len(_known) >= _KNOWN_MAX:
                _known.clear()
            _known[data] = meta
    return meta


def _parsed(data: bytes) -> RequestMeta:
    fields = data.decode("latin-1").split("\n")
    if len(fields) != 4 or not (fields[2] == "" or fields[2].isdecimal()):
        raise LinkError("malformed request meta")
    length = int(fields[2]) if fields[2] else -1
    return RequestMeta(fields[0], fields[1], length, fields[3])


_answer: Callable[[tuple[Any, ...]], AnswerMeta] = partial(tuple.__new__, AnswerMeta)
"""Faster than the constructor of a named tuple, which is a Python function."""


def pack_answer(meta: AnswerMeta) -> bytes:
    """Meta of a RESPONSE frame; times are cut to NUMBER_MAX microseconds (71 minutes)."""
    content_type, *numbers = meta
    place = CONTENT_TYPES.index(content_type)
    return ANSWER_META.pack(place, *[min(number, NUMBER_MAX) for number in numbers])


def unpack_answer(data: bytes) -> AnswerMeta:
    """Meta of a RESPONSE frame, parsed. Raises LinkError on a wrong length or content type."""
    try:
        place, decode_us, batch_us, compute_us, encode_us, rows = ANSWER_META.unpack(data)
        return _answer((CONTENT_TYPES[place], decode_us, batch_us, compute_us, encode_us, rows))
    except (struct.error, IndexError):
        raise LinkError("malformed answer meta") from None
