"""Which request heads the fast front answers itself: the plain ones, and no others. Pure.

Whatever two readers of HTTP could understand differently (RFC 9112 section 11) is not among them.
"""

from __future__ import annotations

import re
from typing import Final

import httptools

from gateway.http.head import Head, make_head

HEAD_MAX: Final = 4096
"""Bytes; longer heads are left to aiohttp, which has limits of its own."""
HEADERS_MAX: Final = 40
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


class HotHead:
    """A plain `POST /fn/{ref}` with a body of `length` bytes; known by identity."""

    __slots__ = ("head", "length")

    def __init__(self, head: Head, length: int) -> None:
        self.head = head
        self.length = length


def read_head(raw: bytes) -> HotHead | None:
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
    return HotHead(head, int(length[0]))


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
