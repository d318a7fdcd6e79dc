"""Heads of answers as the client gets them. Pure (RFC 9110 section 7.6, RFC 6265, RFC 9112)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gateway.pages.cookies import NAMES as OWN_COOKIES
from gateway.proxy.fields import Field, Fields
from gateway.proxy.forwarding import framing_line
from gateway.proxy.framing import NO_BODY, UNTIL_CLOSE, BodyKind, Framing
from gateway.proxy.response_head import SWITCHING, ResponseHead
from registry.field_classes import (
    ANSWERED,
    HEALTH,
    HOP_BY_HOP,
    ORIGIN_WIDE,
    REDIRECTS,
    SHARED_ORIGIN,
)

SANDBOX: Final = b"sandbox allow-scripts allow-forms allow-downloads"
"""Content-Security-Policy of pages below /fn/NAME: they share the dashboard's origin."""
UNFRAMED: Final = b"frame-ancestors 'self'"
"""Content-Security-Policy of pages on a function's own host, unless its server says who may frame
them."""
URLS: Final = frozenset({b"location", b"content-location"})
"""Fields whose values get the function's prefix."""
_CLASSES: Final = (HOP_BY_HOP, ANSWERED, REDIRECTS, HEALTH, ORIGIN_WIDE)
_PREFIXES: Final = tuple(prefix for one in _CLASSES for prefix in one.prefixes)
_DROPPED_ON_OWN_HOST: Final = frozenset({b"content-length"}).union(*(one.names for one in _CLASSES))
_DROPPED: Final = _DROPPED_ON_OWN_HOST | SHARED_ORIGIN.names
_KEPT: Final = REDIRECTS.kept
_ADDITIONAL: Final = frozenset(
    {b"server-timing", b"content-security-policy", b"vary", b"set-cookie"}
)
_CORS: Final = b"access-control-allow-"
_ANCESTORS: Final = re.compile(rb"(?:^|[;,])[ \t]*frame-ancestors(?:[ \t;,]|$)", re.IGNORECASE)
_FRAME_OPTIONS: Final = frozenset({b"deny", b"sameorigin"})


class Answering(NamedTuple):
    """What the gateway knows about an answer besides its head.

    `prefix`: /fn/NAME as the client sent it, b"" on the function's own host. `host`: the request's.
    `minor`: of the client's HTTP/1.`minor`. `keep_alive`: the client's connection may stay open.
    `is_bare`: the client's target was the prefix itself. `added`: fields of the gateway, which
    replace the server's; those of _ADDITIONAL stand beside the server's, and one
    Access-Control-Allow-* replaces all. `outer`: the path before `prefix` for clients of a trusted
    proxy, and `public_host` the host that they use; b"" without one. `port`: the server's TCP port,
    0 if it has none. `dropped`: lower-case names of further fields that the client does not get.
    `server_host`: the Host that the server got, b"" for the client's.
    """

    prefix: bytes
    host: bytes
    minor: int = 1
    keep_alive: bool = True
    is_bare: bool = False
    added: tuple[Field, ...] = ()
    outer: bytes = b""
    public_host: bytes = b""
    port: int = 0
    dropped: frozenset[bytes] = frozenset()
    server_host: bytes = b""


class ClientAnswer(NamedTuple):
    """Head of an answer for the client.

    `keep_alive`: the connection stays open after the body. `is_dechunked`: the client gets only the
    content of the chunks, because it speaks HTTP/1.0; the end of the connection ends the body.
    """

    head: bytes
    keep_alive: bool
    is_dechunked: bool = False


def forward_answer(head: ResponseHead, given: Answering) -> ClientAnswer:
    """Return the head that the client gets, and what the client needs of the body."""
    framing, is_dechunked = head.framing, False
    if framing.kind is BodyKind.CHUNKED and not given.minor:
        framing, is_dechunked = UNTIL_CLOSE, True
    keep_alive = given.keep_alive and framing.kind is not BodyKind.UNTIL_CLOSE
    lines = [b"HTTP/1.1 %d %b\r\n" % (head.status, head.reason)]
    own = {name.lower() for name, _ in given.added} - _ADDITIONAL
    foreign = (*_PREFIXES, _CORS) if any(name.startswith(_CORS) for name in own) else _PREFIXES
    dropped = own | given.dropped | (_DROPPED if given.prefix else _DROPPED_ON_OWN_HOST)
    for low, line in zip(head.fields.names, head.fields.lines, strict=True):
        if low in dropped or low in head.options:
            continue
        if low.startswith(foreign) and low not in _KEPT:
            continue
        if low == b"set-cookie":
            if cookie := scope_cookie(line[1], given):
                lines.append(b"%b: %b\r\n" % (line[0], cookie))
        elif low in URLS:
            lines.append(b"%b: %b\r\n" % (line[0], prefix_location(line[1], given)))
        else:
            lines.append(b"%b: %b\r\n" % line)
    lines += [b"%b: %b\r\n" % field for field in given.added]
    lines.append(_policy(head.fields, given.prefix))
    lines.append(_length_line(head, framing))
    if head.status == SWITCHING:
        lines.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    elif keep_alive:
        lines.append(b"Connection: keep-alive\r\n\r\n")
    else:
        lines.append(b"Connection: close\r\n\r\n")
    return ClientAnswer(b"".join(lines), keep_alive, is_dechunked)


def _policy(fields: Fields, prefix: bytes) -> bytes:
    """Return the field that keeps pages apart from the pages of others.

    On the function's own host a server's X-Frame-Options stays in force only without
    frame-ancestors (CSP level 3 section 6.4.2).
    """
    if prefix:
        return b"Content-Security-Policy: %b\r\n" % SANDBOX
    options = fields.items(b"x-frame-options")
    if options and _FRAME_OPTIONS.issuperset(options):
        return b""
    if _ANCESTORS.search(fields.get(b"content-security-policy")):
        return b""
    return b"Content-Security-Policy: %b\r\n" % UNFRAMED


def forward_interim(head: ResponseHead) -> bytes:
    """Return an interim answer (1xx) for a client. HTTP/1.0 clients must not get any."""
    lines = [b"HTTP/1.1 %d %b\r\n" % (head.status, head.reason)]
    for low, line in zip(head.fields.names, head.fields.lines, strict=True):
        is_dropped = low in _DROPPED or low in head.options or low == b"set-cookie"
        if not is_dropped and (low in _KEPT or not low.startswith(_PREFIXES)):
            lines.append(b"%b: %b\r\n" % line)
    lines.append(b"\r\n")
    return b"".join(lines)


def _length_line(head: ResponseHead, framing: Framing) -> bytes:
    """Return the framing field; the answers to HEAD and 304 say the length of another answer."""
    if framing != NO_BODY:
        return framing_line(framing)
    length = head.fields.values.get(b"content-length")
    if length is None or head.status < 200 or head.status == 204:
        return b""
    return b"Content-Length: %b\r\n" % length


_ABSOLUTE: Final = re.compile(rb"((?:https?:)?//)([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_SCHEME: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*:")
_PORT: Final = re.compile(rb":[0-9]*\Z")
_HTTP_PORT: Final = 80


def prefix_location(value: bytes, given: Answering) -> bytes:
    """Return a URL of the function's server as clients reach it.

    Paths get the prefix, unless they have it already: a server that respects X-Forwarded-Prefix has
    written it. So do the paths of URLs on the client's host. URLs on the server's own address, or
    on the Host that it got instead of the client's, lose scheme and host: no client can connect to
    it.
    """
    absolute = _ABSOLUTE.fullmatch(value)
    if absolute is not None:
        scheme, host, rest = absolute.groups()
        low, path = host.lower(), rest or b"/"
        if low and low in (given.host.lower(), given.public_host.lower()):
            return b"%b%b%b" % (scheme, host, _prefixed(path, given))
        is_told = bool(low) and low == given.server_host.lower()
        if is_told or (scheme.lower() != b"https://" and low in _own_authorities(given)):
            return _prefixed(path, given)
        return value
    if value.startswith(b"/"):
        return _prefixed(value, given)
    if given.is_bare and not _SCHEME.match(value):
        return b"%b%b/%b" % (given.outer, given.prefix, value)
    return value


def _own_authorities(given: Answering) -> set[bytes]:
    """Return the authorities that a server takes for its own address.

    Some servers, such as nginx, join the name of the field Host with the port on which they listen.
    """
    if not given.port:
        return set()
    host = (given.server_host or given.host).lower()
    names = {b"127.0.0.1", b"localhost", _PORT.sub(b"", host)}
    own = {b"%b:%d" % (name, given.port) for name in names}
    return own | names if given.port == _HTTP_PORT else own


def _prefixed(path: bytes, given: Answering) -> bytes:
    """Return a path, or a query, below the prefix; unchanged if it is already there.

    /fn/NAME counts for /fn/NAME@REVISION, too: a server may have the prefix in its settings.
    """
    prefix, outer = given.prefix, given.outer
    plain = re.split(rb"@|%40", prefix, maxsplit=1)[0]
    for known in (prefix, plain):
        if _is_below(path, outer + known):
            return path
        if _is_below(path, known):
            return outer + path
    prefix = outer + prefix
    return prefix + path if path.startswith(b"/") else b"%b/%b" % (prefix, path)


def _is_below(path: bytes, prefix: bytes) -> bool:
    return path == prefix or (path.startswith(prefix) and path[len(prefix) :][:1] in b"/?#")


def scope_cookie(value: bytes, given: Answering) -> bytes:
    """Return a value of Set-Cookie that is sent back to this function only (RFC 6265).

    `Domain` is cut, `Path` gets the prefix if there is one. A cookie without a path gets one if the
    client would derive a path above the function's. Returns b"" for the gateway's own cookies,
    which no function may set; a cookie without a name is compared by its value, because clients
    send it like one.
    """
    pair, *attributes = [part.strip(b" \t") for part in value.split(b";")]
    if pair.lstrip(b"= \t").partition(b"=")[0].rstrip(b" \t") in OWN_COOKIES:
        return b""
    kept, has_path = [pair], False
    for attribute in attributes:
        name, _, text = attribute.partition(b"=")
        low, text = name.rstrip(b" \t").lower(), text.lstrip(b" \t")
        if low == b"domain":
            continue
        if low == b"path":
            if not text.startswith(b"/"):
                continue
            has_path = True
            kept.append(b"Path=" + _cookie_path(text, given))
        else:
            kept.append(attribute)
    if not has_path and given.is_bare:
        kept.append(b"Path=%b%b" % (given.outer, given.prefix))
    return b"; ".join(kept)


def _cookie_path(path: bytes, given: Answering) -> bytes:
    return given.outer + given.prefix or b"/" if path == b"/" else _prefixed(path, given)
