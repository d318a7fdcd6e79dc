"""Heads as they are forwarded to a function's server. Pure.

RFC 9110 section 7.6. The body is forwarded as it is framed, so the framing fields are written from
the parsed framing and never copied.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gateway.proxy.fields import Field
from gateway.proxy.framing import BodyKind, Framing
from gateway.proxy.request_head import RequestHead

HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"te", b"upgrade", b"http2-settings", b"transfer-encoding"}
    | {b"proxy-connection", b"proxy-authorization", b"proxy-authenticate", b"proxy-features"}
    | {b"proxy-authentication-info", b"proxy-instruction"}
)
_WRITTEN: Final = frozenset({b"content-length", b"expect", b"x-request-id", b"fn-key"})
"""Fields that are written from what is known, or are meant for the gateway."""
_ORIGINS: Final = frozenset(
    {b"forwarded", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"}
    | {b"x-forwarded-prefix"}
)
"""Fields that the gateway writes for every request."""
_CLAIMS: Final = frozenset(
    {b"x-real-ip", b"x-original-url", b"x-rewrite-url", b"x-original-host"}
    | {b"x-client-ip", b"x-cluster-client-ip", b"true-client-ip", b"cf-connecting-ip"}
)
"""Fields in which servers believe what only a proxy can know."""
_DROPPED: Final = HOP_BY_HOP | _WRITTEN | _ORIGINS
_PATH: Final = re.compile(rb"(?:/[A-Za-z0-9._~!$&'()*+,;=:@%-]+)+/?")


class Forwarding(NamedTuple):
    """What the gateway knows about a request besides its head.

    `target`: what the function's server gets. `prefix`: /fn/NAME as the client sent it. `peer`: IP
    address of the client's connection. `is_trusted`: the peer is a proxy whose X-Forwarded-* are
    believed. `traceparent`: b"" keeps the client's. `cookie`: name of the gateway's own cookie.
    `expects_continue`: ask the server for "100 Continue"; False once the gateway itself has sent
    it. `is_websocket`: a checked opening handshake. `framing`: of the body as it is sent to the
    server, None for the same as the client's.
    """

    target: bytes
    prefix: bytes
    peer: bytes
    request_id: bytes
    scheme: bytes = b"http"
    traceparent: bytes = b""
    is_trusted: bool = False
    drops_authorization: bool = False
    cookie: bytes = b"fngate"
    expects_continue: bool = False
    is_websocket: bool = False
    framing: Framing | None = None


def forward_request(head: RequestHead, given: Forwarding) -> bytes:
    """Return the head that the function's server gets: always HTTP/1.1, and persistent."""
    values = head.fields.values
    lines = [b"%b %b HTTP/1.1\r\n" % (head.method, given.target)]
    for name, value in head.fields.lines:
        low = name.lower()
        if low in _DROPPED or low in head.options:
            continue
        if _is_guarded(low, given):
            continue
        if low == b"cookie":
            value = without_cookie(value, given.cookie)
            if not value:
                continue
        lines.append(b"%b: %b\r\n" % (name, value))
    lines += _connection(head, given)
    lines += _origin(values, given)
    lines.append(b"X-Request-Id: %b\r\n" % given.request_id)
    if given.traceparent:
        lines.append(b"traceparent: %b\r\n" % given.traceparent)
    if given.expects_continue and head.expects_continue:
        lines.append(b"Expect: 100-continue\r\n")
    lines.append(framing_line(head.framing if given.framing is None else given.framing))
    lines.append(b"\r\n")
    return b"".join(lines)


def _is_guarded(low: bytes, given: Forwarding) -> bool:
    """Return whether a client may not send this field to the server.

    Servers of the CGI family take X_Forwarded_For for X-Forwarded-For.
    """
    if b"_" in low:
        plain = low.replace(b"_", b"-")
        if plain in _DROPPED or plain in _CLAIMS or plain == b"authorization":
            return True
        low = plain
    if low == b"authorization":
        return given.drops_authorization
    if low == b"traceparent":
        return bool(given.traceparent)
    if low.startswith((b"proxy-", b"fn-key")):
        return True
    return not given.is_trusted and (low in _CLAIMS or low.startswith(b"x-forwarded-"))


def _connection(head: RequestHead, given: Forwarding) -> list[bytes]:
    if given.is_websocket:
        return [b"Connection: Upgrade\r\nUpgrade: websocket\r\n"]
    if b"trailers" in head.fields.items(b"te"):
        return [b"Connection: TE\r\nTE: trailers\r\n"]
    return []


def _origin(values: dict[bytes, bytes], given: Forwarding) -> list[bytes]:
    """Return the fields that say where a request came from (RFC 7239, and the usual X- fields)."""
    known = values if given.is_trusted else {}
    host = values[b"host"]
    chain = known.get(b"x-forwarded-for")
    outer = known.get(b"x-forwarded-prefix", b"")
    prefix = outer.rstrip(b"/") + given.prefix if _PATH.fullmatch(outer) else given.prefix
    node = b'"[%b]"' % given.peer if b":" in given.peer else given.peer or b"unknown"
    element = b'for=%b;host="%b";proto=%b' % (node, host, given.scheme)
    earlier = known.get(b"forwarded")
    return [
        b"X-Forwarded-For: %b\r\n" % (b"%b, %b" % (chain, given.peer) if chain else given.peer),
        b"X-Forwarded-Proto: %b\r\n" % known.get(b"x-forwarded-proto", given.scheme),
        b"X-Forwarded-Host: %b\r\n" % known.get(b"x-forwarded-host", host),
        b"X-Forwarded-Prefix: %b\r\n" % prefix,
        b"Forwarded: %b\r\n" % (b"%b, %b" % (earlier, element) if earlier else element),
    ]


def framing_line(framing: Framing) -> bytes:
    """Return the field line that frames a body, b"" where there is none."""
    if framing.kind is BodyKind.CHUNKED:
        return b"Transfer-Encoding: chunked\r\n"
    if framing.kind is BodyKind.LENGTH:
        return b"Content-Length: %d\r\n" % framing.length
    return b""


def without_cookie(value: bytes, name: bytes) -> bytes:
    """Return a value of the field Cookie without the cookie `name` (RFC 6265 section 4.2)."""
    if name not in value:
        return value
    pairs = [pair.strip(b" \t") for pair in value.split(b";")]
    return b"; ".join(pair for pair in pairs if pair and pair.partition(b"=")[0].strip() != name)


__all__ = ["Field", "Forwarding", "forward_request", "framing_line", "without_cookie"]
