"""Plain request heads: the only heads that the fast path parses. Pure.

A head that two HTTP parsers could understand differently (RFC 9112 section 11) is not plain.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import httptools

from gateway.admission.calls import NOT_CORRELATED, Correlation, Head, correlate, make_head
from gateway.http.compression import requested_coding

HEAD_MAX: Final = 4096
"""Max bytes. Longer heads are left to aiohttp, which has its own limits."""
HEADERS_MAX: Final = 40
HEADS_MAX: Final = 1024
"""Max heads in the cache."""
_PLAIN: Final = re.compile(
    rb"POST /(?:fn/([a-z0-9@-]{1,80})"
    rb"|v2/models/([A-Za-z0-9._-]{1,255})(?:/versions/([0-9]{1,18}))?/infer) HTTP/1\.1\r\n"
    rb"(?:[A-Za-z0-9-]{1,64}: ?[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?\r\n)+\r\n"
)
_LENGTH: Final = re.compile("0|[1-9][0-9]{0,8}")
_UNUSUAL: Final = frozenset(
    {"transfer-encoding", "content-encoding", "expect", "upgrade", "te", "trailer"}
    | {"proxy-connection", "sec-websocket-key1", "origin"}
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


class HeadCache:
    """Cache of parsed plain heads by their bytes.

    Clients repeat the same head, except for the lines that correlate a request.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, PlainHead] = {}

    def read(self, raw: bytes) -> PlainHead | None:
        """Return the parsed head, None if `raw` is not plain."""
        plain = self._known.get(raw)
        if plain is not None:
            return plain
        parted = split_correlation(raw)
        if parted is None:
            return None
        common, correlation = parted
        plain = self._known.get(common) or self._learn(common)
        if plain is None or correlation is NOT_CORRELATED:
            return plain
        return PlainHead(plain.head, plain.length, plain.key, correlation)

    def _learn(self, raw: bytes) -> PlainHead | None:
        plain = parse_plain_head(raw)
        if plain is not None:
            if len(self._known) >= HEADS_MAX:
                self._known.clear()
            self._known[raw] = plain
        return plain


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
    headers = _headers(raw)
    if headers is None or _UNUSUAL & headers.keys():
        return None
    length = _LENGTH.fullmatch(headers.get("content-length", ""))
    if length is None or "host" not in headers:
        return None
    if headers.get("connection", "keep-alive").lower() != "keep-alive":
        return None
    ref, model, version = (None if part is None else part.decode() for part in found.groups())
    if ref is None:
        ref, version = model or "", version or ""
        if requested_coding((headers.get("accept-encoding", ""),)):
            return None
    head = make_head(ref, headers["host"], lambda name: headers.get(name.lower()), headers, version)
    return PlainHead(head, int(length[0]), object())


def _headers(raw: bytes) -> dict[str, str] | None:
    """Return headers by lower-case name.

    None if one repeats, there are too many, or llhttp rejects them.
    """
    pairs: list[tuple[str, str]] = []
    try:
        httptools.HttpRequestParser(_Pairs(pairs)).feed_data(raw)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    headers = dict(pairs)
    return headers if len(headers) == len(pairs) <= HEADERS_MAX else None


class _Pairs:
    """Collects headers (httptools' protocol)."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = pairs

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add one header (httptools)."""
        self._pairs.append((name.decode().lower(), value.decode()))
