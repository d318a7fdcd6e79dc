"""Heads of requests, parsed strictly (RFC 9112 sections 2 and 3). Pure.

A head that two recipients could understand differently is refused (RFC 9112 section 11).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.proxy.fields import (
    BARE_END,
    Fields,
    Malformed,
    parse_fields,
    read_connection,
)
from gateway.proxy.framing import NO_BODY, Framing, read_framing
from registry.errors import BadRequest, ExpectationFailed, HeadTooLarge

HEAD_MAX: Final = 32 * 1024
FIELDS_MAX: Final = 100
_METHOD: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Z-]{1,32}")
# A target without # and backslash, which servers read in different ways.
_LINE: Final = re.compile(
    rb"(" + _METHOD.pattern + rb") (/[\x21\x22\x24-\x5b\x5d-\x7e]*) HTTP/1\.([01])\r\n"
)
_VERSION: Final = re.compile(rb".* HTTP/([0-9]\.[0-9])")
_HOST: Final = re.compile(
    rb"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._~!$&'()*+,;=%-]+)(?::[0-9]{1,5})?"
)
_UNSUPPORTED: Final = frozenset({b"CONNECT", b"TRACE"})
_LATER: Final = frozenset({b"connection", b"expect", b"upgrade"})


class RequestHead(NamedTuple):
    """Head of one request.

    `target` is in origin form: an absolute path and an optional query, as sent. `minor`: of the
    version, HTTP/1.`minor`. `expects_continue`: the client waits for "100 Continue" before it sends
    the body. `options`: lower-case options of the field Connection. `upgrade`: protocols of the
    field Upgrade, in lower case, empty unless Connection names it.
    """

    method: bytes
    target: bytes
    minor: int
    fields: Fields
    framing: Framing
    keep_alive: bool
    expects_continue: bool = False
    options: frozenset[bytes] = frozenset()
    upgrade: tuple[bytes, ...] = ()


def parse_request_head(raw: bytes) -> RequestHead:
    """Parse the head in `raw`, which ends with its empty line.

    Raises BadRequest, HeadTooLarge or ExpectationFailed. No text quotes the request: it may hold
    keys.
    """
    if len(raw) > HEAD_MAX:
        raise HeadTooLarge(f"expected a head of at most {HEAD_MAX} bytes, got {len(raw)}")
    line = _LINE.match(raw)
    if line is None or line[1] in _UNSUPPORTED:
        raise BadRequest(_what_is_wrong(raw))
    if raw.count(b"\n") > FIELDS_MAX + 2:
        raise HeadTooLarge(f"expected a head of at most {FIELDS_MAX} fields, got more")
    try:
        return _checked(line, parse_fields(raw, line.end(), FIELDS_MAX))
    except Malformed as error:
        raise BadRequest(str(error)) from None


def header_of(head: RequestHead) -> Callable[[str], str | None]:
    """Return a function that returns the value of a header, None if it is missing."""
    values = head.fields.values

    def header(name: str) -> str | None:
        value = values.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")

    return header


def _checked(line: re.Match[bytes], fields: Fields) -> RequestHead:
    """Return the head after the checks of fields. Raises Malformed and ExpectationFailed."""
    minor = int(line[3])
    framing = read_framing(fields, minor) or NO_BODY
    _check_host(fields)
    if _LATER.isdisjoint(fields.values):
        return RequestHead(line[1], line[2], minor, fields, framing, minor == 1)
    keep_alive, options = read_connection(fields, minor)
    upgrade = tuple(fields.items(b"upgrade")) if minor and b"upgrade" in options else ()
    expects = _is_expecting(fields) and minor == 1 and not framing.is_empty
    return RequestHead(
        line[1], line[2], minor, fields, framing, keep_alive, expects, options, upgrade
    )


def _check_host(fields: Fields) -> None:
    host = fields.values.get(b"host")
    if host is None:
        raise Malformed("Host: expected one field, got none")
    if b"host" in fields.repeated:
        raise Malformed("Host: expected one field, got several")
    if not _HOST.fullmatch(host):
        raise Malformed("Host: expected a host and an optional port")


def _is_expecting(fields: Fields) -> bool:
    expect = fields.values.get(b"expect")
    if expect is None:
        return False
    if expect.lower() != b"100-continue":
        raise ExpectationFailed("Expect: expected 100-continue, got another value")
    return True


def _what_is_wrong(raw: bytes) -> str:
    """Return what is wrong with the request line, without quoting it."""
    line = raw.partition(b"\n")[0].removesuffix(b"\r")
    version = _VERSION.fullmatch(line)
    if version is not None and version[1] not in (b"1.0", b"1.1"):
        return f"version: expected HTTP/1.0 or HTTP/1.1, got HTTP/{version[1].decode()}"
    parts = line.split(b" ")
    if len(parts) != 3 or version is None:
        return "expected a request line of method, target and version, and CRLF"
    if parts[0].upper() in _UNSUPPORTED:
        return f"method: expected one that servers of functions get, got {parts[0].decode()}"
    if not _METHOD.fullmatch(parts[0]):
        return "method: expected at most 32 characters of a token in capitals (RFC 9110)"
    if not parts[1].startswith(b"/"):
        return "target: expected a path that begins with /, got another form"
    if not _LINE.match(line + b"\r\n"):
        return "target: expected printable ASCII without \\ and #, got other characters"
    return BARE_END
