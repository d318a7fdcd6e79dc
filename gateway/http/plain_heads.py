"""Plain request heads: the only ones that the fast path reads itself. Pure.

A head that two readers of HTTP could understand differently (RFC 9112 section 11) is not plain.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import httptools

from gateway.http.admission import NOT_CORRELATED, Correlation, Head, correlate, make_head

HEAD_MAX: Final = 4096
"""Bytes. Longer heads are left to aiohttp, which has limits of its own."""
HEADERS_MAX: Final = 40
HEADS_MAX: Final = 1024
"""Heads remembered by their bytes."""
_PLAIN: Final = re.compile(
    rb"POST /fn/([a-z0-9@-]{1,80}) HTTP/1\.1\r\n"
    rb"(?:[A-Za-z0-9-]{1,64}: ?[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?\r\n)+\r\n"
)
_LENGTH: Final = re.compile("0|[1-9][0-9]{0,8}")
_UNUSUAL: Final = frozenset(
    {"transfer-encoding", "content-encoding", "expect", "upgrade", "te", "trailer"}
    | {"proxy-connection", "sec-websocket-key1"}
)
"""Headers that change how a body is read, whether the connection is kept (llhttp takes
Proxy-Connection for Connection), or for which aiohttp refuses a request."""


_VARYING: Final = ("X-Request-Id", "traceparent", "tracestate", "baggage")
"""Headers that differ with each request of a client that traces."""
_VARYING_LINES: Final = tuple((name, f"\r\n{name}:".lower().encode()) for name in _VARYING)
_VALUE: Final = re.compile(rb" ?([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)\r\n")


class PlainHead(NamedTuple):
    """A plain `POST /fn/{ref}` with a body of `length` bytes. Heads with the same `key` differ in
    their correlation only."""

    head: Head
    length: int
    key: object
    correlation: Correlation = NOT_CORRELATED


class HeadCache:
    """Parsed plain heads by their bytes: clients send the same head again and again, but for the
    lines that correlate a request."""

    def __init__(self) -> None:
        self._known: dict[bytes, PlainHead] = {}

    def read(self, raw: bytes) -> PlainHead | None:
        """The parsed head, None where `raw` is not plain."""
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
    """A head without its correlating lines, and its correlation. None where the head is not plain:
    such a line comes twice, or the head is too long."""
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
    """The head in `raw`, which ends with its empty line; None where it is not plain.

    Each header at most once, Host and Content-Length there, printable ASCII only, one space or
    none after the colon, nothing that changes how the body or the connection is read.
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
    head = make_head(found[1].decode(), headers["host"], lambda name: headers.get(name.lower()))
    return PlainHead(head, int(length[0]), object())


def _headers(raw: bytes) -> dict[str, str] | None:
    """By lower-case name; None where one comes twice, there are too many, or llhttp objects."""
    pairs: list[tuple[str, str]] = []
    try:
        httptools.HttpRequestParser(_Pairs(pairs)).feed_data(raw)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    headers = dict(pairs)
    return headers if len(headers) == len(pairs) <= HEADERS_MAX else None


class _Pairs:
    """httptools' protocol: collects headers."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = pairs

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools': one header."""
        self._pairs.append((name.decode().lower(), value.decode()))
