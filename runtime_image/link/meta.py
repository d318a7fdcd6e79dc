"""Meta of REQUEST and RESPONSE frames: request headers, and timings of an answer."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from runtime_image.contract.link import ANSWER_META, CONTENT_TYPES, META_SEPARATOR
from runtime_image.link.frames import LinkError

FIELD_MAX = 4096
"""Max characters per field."""
NUMBER_MAX = 2**32 - 1
_KNOWN_MAX = 256
"""Max request metas cached in parsed form: clients repeat the same few."""
_KNOWN_SIZE = 256
"""Max bytes of a cached meta."""
_known: dict[bytes, RequestMeta] = {}


class RequestMeta(NamedTuple):
    """Request headers that the codecs need. `json_length` is the Inference-Header-Content-Length,
    -1 without that header."""

    content_type: str
    accept: str
    json_length: int
    traceparent: str


class AnswerMeta(NamedTuple):
    """Content type of an answer, its times in microseconds, the rows of its batch, and those of its
    request."""

    content_type: str
    decode_us: int
    batch_us: int
    compute_us: int
    encode_us: int
    rows: int
    own_rows: int = 1


def pack_request(meta: RequestMeta) -> bytes:
    """Encode the meta of a REQUEST frame; characters outside latin-1 become "?"."""
    length = "" if meta.json_length < 0 else str(meta.json_length)
    fields = (meta.content_type, meta.accept, length, meta.traceparent)
    return META_SEPARATOR.join(field[:FIELD_MAX].encode("latin-1", "replace") for field in fields)


def unpack_request(data: bytes) -> RequestMeta:
    """Parse the meta of a REQUEST frame. Raises LinkError."""
    meta = _known.get(data)
    if meta is None:
        meta = _parsed(data)
        # Every traceparent is unique, so caching it is useless.
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
"""Skips the named tuple's constructor, which is a slower Python function."""


def pack_answer(meta: AnswerMeta) -> bytes:
    """Encode the meta of a RESPONSE frame; times are capped at NUMBER_MAX microseconds (71 min)."""
    content_type, *numbers = meta
    place = CONTENT_TYPES.index(content_type)
    return ANSWER_META.pack(place, *[min(number, NUMBER_MAX) for number in numbers])


def unpack_answer(data: bytes) -> AnswerMeta:
    """Parse the meta of a RESPONSE frame. Raises LinkError on a wrong length or content type."""
    try:
        place, decode_us, batch_us, compute_us, encode_us, rows, own = ANSWER_META.unpack(data)
        content_type = CONTENT_TYPES[place]
        return _answer((content_type, decode_us, batch_us, compute_us, encode_us, rows, own))
    except (struct.error, IndexError):
        raise LinkError("malformed answer meta") from None
