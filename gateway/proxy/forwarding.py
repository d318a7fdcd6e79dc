"""Heads as they are forwarded to a function's server. Pure.

RFC 9110 section 7.6. The body is forwarded as it is framed, so the framing fields are written from
the parsed framing and never copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from gateway.pages.cookies import NAME as OWN_NAME
from gateway.pages.cookies import NAMES as OWN_COOKIES
from gateway.proxy.framing import BodyKind, Framing
from gateway.proxy.request_head import RequestHead
from registry.field_classes import CLAIMS, FILES, HOP_BY_HOP, OWN, PATHS, PLAIN, WRITTEN, fold

_DROPPED: Final = HOP_BY_HOP.names | WRITTEN.names | PATHS.names | OWN.names
_DROPPED_WITH_HOST: Final = _DROPPED | {b"host"}
_DROPPED_PREFIXES: Final = HOP_BY_HOP.prefixes + FILES.prefixes
_JUDGED: Final = CLAIMS.names | {b"cookie", b"traceparent"}
_JUDGED_PREFIXES: Final = _DROPPED_PREFIXES + CLAIMS.prefixes
_PATH: Final = re.compile(rb"(?:/[A-Za-z0-9._~!$&'()*+,;=:@%-]+)+/?")
HOPS_MAX: Final = 64
"""Max addresses of X-Forwarded-For that the gateway writes into Forwarded: the last ones."""
_IPV4: Final = re.compile(rb"([0-9.]{7,15})(?::[0-9]{1,5})?")
_IPV6: Final = re.compile(rb"\[?([0-9A-Fa-f]{0,4}:[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:.]{0,37})\]?")
_AUTHORITY: Final = re.compile(rb"[][A-Za-z0-9._~!$&'()*+;=:%-]+")
_SCHEME: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*")


SERVER_ADDRESS: Final = b"\1"
"""Stands in a head for the server's address until its connection is there. No parsed head has this
character."""


class Forwarding(NamedTuple):
    """What the gateway knows about a request besides its head.

    `target`: what the function's server gets. `prefix`: /fn/NAME as the client sent it, b"" on the
    function's own host. `peer`: IP address of the client's connection. `is_trusted`: the peer is a
    proxy whose X-Forwarded-* are believed. `traceparent`: b"" keeps the client's.
    `expects_continue`: ask the server for "100 Continue"; False once the gateway itself has sent
    it. `is_websocket`: a checked opening handshake. `framing`: of the body as it is sent to the
    server, None for the same as the client's. `fields`: lower-case names with `_` that the
    function's settings let pass. `keys`: texts in this head that are keys of this server, see
    `gateway.proxy.own_keys`; no field with one of them is forwarded. `host`: the Host that the
    server gets, SERVER_ADDRESS for its address, b"" for the client's.
    """

    target: bytes
    prefix: bytes
    peer: bytes
    request_id: bytes
    scheme: bytes = b"http"
    traceparent: bytes = b""
    is_trusted: bool = False
    expects_continue: bool = False
    is_websocket: bool = False
    framing: Framing | None = None
    fields: frozenset[bytes] = frozenset()
    keys: frozenset[bytes] = frozenset()
    host: bytes = b""


def forward_request(head: RequestHead, given: Forwarding) -> bytes:
    """Return the head that the function's server gets: always HTTP/1.1, and persistent."""
    fields = head.fields
    lines = [b"%b %b HTTP/1.1\r\n" % (head.method, given.target)]
    if given.host:
        lines.append(b"Host: %b\r\n" % given.host)
    lines += _field_lines(head, given)
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


def addressed(head: bytes, port: int) -> bytes:
    """Return a head for the server that listens on TCP port `port`, 0 for a Unix socket."""
    return head.replace(SERVER_ADDRESS, address_of(port), 1)


def address_of(port: int) -> bytes:
    """Return the Host of requests to the address of a server, by its port as of `addressed`.

    An address rather than a name: servers that check Host against DNS rebinding take 127.0.0.1, and
    many of them every address, as none can be rebound. With its port, which some of them demand.
    """
    return b"127.0.0.1:%d" % port if port else b"localhost"


def _field_lines(head: RequestHead, given: Forwarding) -> Iterator[bytes]:
    """Yield the lines of the client's fields that its server gets."""
    fields, options, keys = head.fields, head.options, given.keys
    has_odd = bool(b"".join(fields.names).translate(None, PLAIN))
    dropped = _DROPPED_WITH_HOST if given.host else _DROPPED
    for low, (name, sent) in zip(fields.names, fields.lines, strict=True):
        if low in dropped or low in options:
            continue
        value: bytes | None = sent
        if has_odd and low.translate(None, PLAIN):
            value = _permitted_odd(low, sent, given)
        elif low in _JUDGED or low.startswith(_JUDGED_PREFIXES):
            value = _permitted(low, sent, given)
        if value is None or (keys and any(key in value for key in keys)):
            continue
        yield b"%b: %b\r\n" % (name, value)


def _permitted(low: bytes, value: bytes, given: Forwarding) -> bytes | None:
    """Return the value with which a client's field is forwarded, None if it is not."""
    if low in _DROPPED or low.startswith(_DROPPED_PREFIXES):
        return None
    if low == b"cookie":
        return kept_cookies(value, given.keys) or None
    if low == b"traceparent":
        return None if given.traceparent else value
    return None if CLAIMS.has(low) and not given.is_trusted else value


def _permitted_odd(low: bytes, value: bytes, given: Forwarding) -> bytes | None:
    """Return what `_permitted` does, for a name with characters that some servers read as others.

    Servers of the CGI family take X_Forwarded_For for X-Forwarded-For. A name with `_` is dropped,
    and one with other such characters is treated as the name that they read.
    """
    if b"_" in low:
        return value if low in given.fields else None
    return _permitted(fold(low), value, given)


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


def kept_cookies(value: bytes, keys: frozenset[bytes] = frozenset()) -> bytes:
    """Return a value of the field Cookie without the gateway's, and without those that contain a
    key of this server (RFC 6265 section 4.2)."""
    if OWN_NAME not in value and not keys:
        return value
    pairs = [pair.strip(b" \t") for pair in value.split(b";")]
    kept = [pair for pair in pairs if pair and pair.partition(b"=")[0].strip() not in OWN_COOKIES]
    return b"; ".join(pair for pair in kept if not any(key in pair for key in keys))
