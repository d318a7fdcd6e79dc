"""Heads of answers of a function's server, parsed strictly (RFC 9112 sections 4 and 6). Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gateway.proxy.fields import Fields, Malformed, parse_fields, read_connection
from gateway.proxy.framing import CHUNKED, NO_BODY, UNTIL_CLOSE, Framing, read_framing

HEAD_MAX: Final = 64 * 1024
FIELDS_MAX: Final = 200
STATUS_MAX: Final = 599
"""RFC 9110 section 15."""
NO_STATUS_LINE: Final = "expected a status line of HTTP/1.0 or HTTP/1.1, and CRLF"
SWITCHING: Final = 101
NO_CONTENT: Final = 204
_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?\r\n")
_BODILESS: Final = frozenset({NO_CONTENT, 304})


class UpstreamError(Malformed):
    """The function's server sent bytes that are not a valid answer."""


class ResponseHead(NamedTuple):
    """Head of one answer; HTTP/1.`minor`.

    `keep_alive`: the connection may be used again after the body. `options`: lower-case options of
    the field Connection.
    """

    minor: int
    status: int
    reason: bytes
    fields: Fields
    framing: Framing
    keep_alive: bool
    options: frozenset[bytes] = frozenset()

    @property
    def is_interim(self) -> bool:
        """Whether another head follows, as after 100 and 103. 101 is final."""
        return self.status < 200 and self.status != SWITCHING


def parse_response_head(raw: bytes, method: bytes) -> ResponseHead:
    """Parse the head in `raw`, which ends with its empty line, of the answer to a `method` request.

    Raises UpstreamError.
    """
    if len(raw) > HEAD_MAX:
        raise UpstreamError(f"expected a head of at most {HEAD_MAX} bytes, got {len(raw)}")
    line = _LINE.match(raw)
    if line is None:
        raise UpstreamError(NO_STATUS_LINE)
    minor, status = int(line[1]), int(line[2])
    if status > STATUS_MAX:
        raise UpstreamError(f"expected a status from 100 to {STATUS_MAX}, got {status}")
    try:
        fields = parse_fields(raw, line.end(), FIELDS_MAX)
        keep_alive, options = read_connection(fields, minor)
        framing = read_framing(fields, minor)
    except Malformed as error:
        raise UpstreamError(str(error)) from None
    if status < 200 or status in _BODILESS or method == b"HEAD":
        # Some servers send a body nevertheless: only bytes that nobody reads again may follow.
        length = 0 if framing is None else framing.length
        keep_alive = keep_alive and framing != CHUNKED and not (status == NO_CONTENT and length)
        framing = NO_BODY
    elif framing is None:
        framing, keep_alive = UNTIL_CLOSE, False
    return ResponseHead(minor, status, line[3] or b"", fields, framing, keep_alive, options)
