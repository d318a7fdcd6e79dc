"""Heads as they are forwarded to a function's server. Pure.

RFC 9110 section 7.6. The body is forwarded as it is framed, so the framing fields are written from
the parsed framing and never copied.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gateway.pages.cookies import NAME as OWN_NAME
from gateway.pages.cookies import NAMES as OWN_COOKIES
from gateway.proxy.framing import BodyKind, Framing
from gateway.proxy.request_head import RequestHead

HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"te", b"upgrade", b"http2-settings", b"transfer-encoding"}
    | {b"proxy-connection", b"proxy-authorization", b"proxy-authenticate", b"proxy-features"}
    | {b"proxy-authentication-info", b"proxy-instruction"}
)
_WRITTEN: Final = frozenset(
    {b"content-length", b"expect", b"x-request-id", b"forwarded", b"x-forwarded-for"}
    | {b"x-forwarded-proto", b"x-forwarded-host", b"x-forwarded-prefix"}
)
"""Fields that the gateway writes for every request."""
_OTHER_TARGETS: Final = frozenset({b"x-original-url", b"x-rewrite-url"})
"""Fields from which servers take another path than the one that path rules have seen."""
_CLAIMS: Final = frozenset(
    {b"x-real-ip", b"x-original-host"}
    | {b"x-client-ip", b"x-cluster-client-ip", b"true-client-ip", b"cf-connecting-ip"}
)
"""Fields in which servers believe what only a proxy can know, besides X-Forwarded-*."""
_DROPPED: Final = HOP_BY_HOP | _WRITTEN | _OTHER_TARGETS | {b"fn-key"}
_SUSPECT: Final = (b"x-", b"proxy-", b"cookie", b"authorization", b"traceparent", b"true-", b"cf-")
"""Beginnings of all names that need a further look. A name with an underscore does too."""
_PATH: Final = re.compile(rb"(?:/[A-Za-z0-9._~!$&'()*+,;=:@%-]+)+/?")
HOPS_MAX: Final = 64
"""Max addresses of X-Forwarded-For that the gateway writes into Forwarded: the last ones."""
_IPV4: Final = re.compile(rb"([0-9.]{7,15})(?::[0-9]{1,5})?")
_IPV6: Final = re.compile(rb"\[?([0-9A-Fa-f]{0,4}:[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:.]{0,37})\]?")
_AUTHORITY: Final = re.compile(rb"[][A-Za-z0-9._~!$&'()*+;=:%-]+")
_SCHEME: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*")


class Forwarding(NamedTuple):
    """What the gateway knows about a request besides its head.

    `target`: what the function's server gets. `prefix`: /fn/NAME as the client sent it, b"" on the
    function's own host. `peer`: IP address of the client's connection. `is_trusted`: the peer is a
    proxy whose X-Forwarded-* are believed. `traceparent`: b"" keeps the client's.
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
    expects_continue: bool = False
    is_websocket: bool = False
    framing: Framing | None = None


def forward_request(head: RequestHead, given: Forwarding) -> bytes:
    """Return the head that the function's server gets: always HTTP/1.1, and persistent."""
    fields, options = head.fields, head.options
    lines = [b"%b %b HTTP/1.1\r\n" % (head.method, given.target)]
    for low, line in zip(fields.names, fields.lines, strict=True):
        if low in _DROPPED or low in options:
            continue
        if low.startswith(_SUSPECT) or b"_" in low:
            value = _permitted(low, line[1], given)
            if value is not None:
                lines.append(b"%b: %b\r\n" % (line[0], value))
        else:
            lines.append(b"%b: %b\r\n" % line)
    lines.append(_origin(fields.values, given))
    if given.traceparent:
        lines.append(b"traceparent: %b\r\n" % given.traceparent)
    if given.expects_continue and head.expects_continue:
        lines.append(b"Expect: 100-continue\r\n")
    if given.is_websocket:
        lines.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n")
    elif b"te" in fields.values and b"trailers" in fields.items(b"te"):
        lines.append(b"Connection: TE\r\nTE: trailers\r\n")
    lines.append(framing_line(head.framing if given.framing is None else given.framing))
    lines.append(b"\r\n")
    return b"".join(lines)


def _permitted(low: bytes, value: bytes, given: Forwarding) -> bytes | None:
    """Return the value with which a client's field is forwarded, None if it is not.

    Servers of the CGI family take X_Forwarded_For for X-Forwarded-For, so it is treated alike.
    """
    low = low.replace(b"_", b"-")
    if low in _DROPPED or low.startswith(b"proxy-"):
        return None
    if low == b"cookie":
        return without_own_cookies(value) or None
    if low == b"authorization":
        return None if given.drops_authorization else value
    if low == b"traceparent":
        return None if given.traceparent else value
    is_claim = low in _CLAIMS or low.startswith(b"x-forwarded-")
    return None if is_claim and not given.is_trusted else value


def outer_prefix(values: dict[bytes, bytes]) -> bytes:
    """Return the path below which a trusted proxy offers this server, without a slash at its end.

    `values`: the fields of the proxy's request. b"" where X-Forwarded-Prefix is no path.
    """
    outer = values.get(b"x-forwarded-prefix", b"")
    return outer.rstrip(b"/") if _PATH.fullmatch(outer) else b""


def _origin(values: dict[bytes, bytes], given: Forwarding) -> bytes:
    """Return the fields that say where a request came from (RFC 7239, and the usual X- fields)."""
    host, scheme, prefix = values[b"host"], given.scheme, given.prefix
    chain = given.peer or b"unknown"
    element = b'for=%b;host="%b";proto=%b' % (_node(chain), host, scheme)
    if given.is_trusted:
        prefix = outer_prefix(values) + prefix
        host = values.get(b"x-forwarded-host") or host
        scheme = values.get(b"x-forwarded-proto") or scheme
        if earlier := values.get(b"x-forwarded-for"):
            element = b"%b, %b" % (_elements(earlier, host, scheme), element)
            chain = b"%b, %b" % (earlier, chain)
        elif earlier := values.get(b"forwarded"):
            element = b"%b, %b" % (earlier, element)
    line = b"X-Forwarded-Prefix: %b\r\n" % prefix if prefix else b""
    return _ORIGIN % (chain, scheme, host, line, element, given.request_id)


def _elements(chain: bytes, host: bytes, scheme: bytes) -> bytes:
    """Return the value of Forwarded that says the same as X-Forwarded-For, -Host and -Proto.

    A proxy that writes X-Forwarded-For may pass a client's Forwarded on unseen, so where there is
    both, the latter is not believed. RFC 7239 section 7.4.
    """
    nodes = [item for part in chain.split(b",") if (item := part.strip(b" \t"))]
    first, *others = [b"for=" + _node(item) for item in nodes[-HOPS_MAX:]] or [b"for=unknown"]
    if _AUTHORITY.fullmatch(host):
        first += b';host="%b"' % host
    if _SCHEME.fullmatch(scheme):
        first += b";proto=" + scheme
    return b", ".join((first, *others))


def _node(address: bytes) -> bytes:
    """Return an address as a node of Forwarded, without a port (RFC 7239 section 6)."""
    if found := _IPV4.fullmatch(address):
        return found[1]
    found = _IPV6.fullmatch(address)
    return b"unknown" if found is None else b'"[%b]"' % found[1]


_ORIGIN: Final = (
    b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\nX-Forwarded-Host: %b\r\n%b"
    b"Forwarded: %b\r\nX-Request-Id: %b\r\n"
)


def framing_line(framing: Framing) -> bytes:
    """Return the field line that frames a body, b"" where there is none."""
    if framing.kind is BodyKind.CHUNKED:
        return b"Transfer-Encoding: chunked\r\n"
    if framing.kind is BodyKind.LENGTH:
        return b"Content-Length: %d\r\n" % framing.length
    return b""


def without_own_cookies(value: bytes) -> bytes:
    """Return a value of the field Cookie without the gateway's (RFC 6265 section 4.2)."""
    if OWN_NAME not in value:
        return value
    pairs = [pair.strip(b" \t") for pair in value.split(b";")]
    kept = [pair for pair in pairs if pair and pair.partition(b"=")[0].strip() not in OWN_COOKIES]
    return b"; ".join(kept)
