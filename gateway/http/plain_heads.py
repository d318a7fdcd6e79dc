"""Plain request heads: those of calls that the fast path answers by itself. Pure.

The proxy's parser reads them. Of what it takes, a head that aiohttp could understand differently
(RFC 9112 section 11), or for which it answers in another way, is not plain.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gateway.admission.calls import NOT_CORRELATED, Correlation, Head, correlate, make_head
from gateway.http.compression import requested_coding
from gateway.proxy.framing import BodyKind
from gateway.proxy.request_head import header_of, parse_request_head
from registry.errors import FnError

HEAD_MAX: Final = 4096
"""Max bytes. Longer heads are left to aiohttp, which has its own limits."""
HEADERS_MAX: Final = 40
LENGTH_MAX: Final = 999_999_999
"""Max bytes of a body."""
_PLAIN: Final = re.compile(
    rb"POST /(?:fn/([a-z0-9@-]{1,80})"
    rb"|v2/models/([A-Za-z0-9._-]{1,255})(?:/versions/([0-9]{1,18}))?/infer) HTTP/1\.1\r\n"
    rb"(?:[A-Za-z0-9-]{1,64}: ?[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?\r\n)+\r\n"
)
_UNUSUAL: Final = frozenset(
    {b"transfer-encoding", b"content-encoding", b"expect", b"upgrade", b"te", b"trailer"}
    | {b"proxy-connection", b"sec-websocket-key1", b"origin"}
)
"""Headers that change how a body is read or whether the connection is kept (llhttp treats
Proxy-Connection like Connection), for which aiohttp refuses a request, or that change an answer's
headers (Origin)."""


_VARYING: Final = ("X-Request-Id", "traceparent", "tracestate", "baggage")
"""Headers that differ in each request of a client that traces."""
_VARYING_LINES: Final = tuple((name, f"\r\n{name}:".lower().encode()) for name in _VARYING)
_VALUE: Final = re.compile(rb" ?([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)\r\n")


class PlainHead(NamedTuple):
    """A plain `POST /fn/{ref}` or inference at /v2, with a body of `length` bytes.

    Heads with the same `key` differ only in their correlation.
    """

    head: Head
    length: int
    key: object
    correlation: Correlation = NOT_CORRELATED


def split_correlation(raw: bytes) -> tuple[bytes, Correlation] | None:
    """Return a head without its correlating lines, and its correlation.

    None if the head is not plain: such a line is repeated, or the head is too long.
    """
    if len(raw) > HEAD_MAX:
        return None
    lowered = raw.lower()
    values: dict[str, str] = {}
    for name, line in _VARYING_LINES:
        at = lowered.find(line)
        if at < 0:
            continue
        found = _VALUE.match(raw, at + len(line))
        if found is None:
            return None
        values[name] = found[1].decode()
        raw, lowered = raw[:at] + raw[found.end() - 2 :], lowered[:at] + lowered[found.end() - 2 :]
        if line in lowered:
            return None
    return raw, correlate(values.get) if values else NOT_CORRELATED


def parse_plain_head(raw: bytes) -> PlainHead | None:
    """Parse the head in `raw`, which ends with its empty line; None if it is not plain.

    A plain head has each header at most once, has Host and Content-Length, and consists of
    printable ASCII characters. After the colon is at most one space. No header changes how the body
    or the connection is read, or asks for a compressed answer.
    """
    found = _PLAIN.fullmatch(raw) if len(raw) <= HEAD_MAX else None
    if found is None:
        return None
    try:
        parsed = parse_request_head(raw)
    except FnError:
        return None
    fields, framing = parsed.fields, parsed.framing
    if fields.repeated or len(fields.lines) > HEADERS_MAX or not _UNUSUAL.isdisjoint(fields.names):
        return None
    if framing.kind is not BodyKind.LENGTH or framing.length > LENGTH_MAX:
        return None
    if fields.values.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    ref, model, version = (None if part is None else part.decode() for part in found.groups())
    header = header_of(parsed)
    if ref is None:
        ref, version = model or "", version or ""
        if requested_coding((header("Accept-Encoding") or "",)):
            return None
    names = (name.decode() for name in fields.names)
    head = make_head(ref, header("Host"), header, names, version)
    return PlainHead(head, framing.length, object())
