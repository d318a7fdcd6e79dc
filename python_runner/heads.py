"""Reads the heads and bodies of HTTP/1.1 requests. Pure.

RFC 9112. Peers are the gateway and the probe: what two readers may take for different requests is
refused, and ends the connection.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from runtime_image.contract import problems
from runtime_image.contract.problems import Problem

HEAD_MAX: Final = 32 * 1024
"""Max bytes of a request's head."""
FIELDS_MAX: Final = 100
"""Max fields of a head, and lines of a trailer."""
LINE_MAX: Final = 256
"""Max bytes of the line before a chunk."""
TRAILER_MAX: Final = 8 * 1024
"""Max bytes of the fields behind the last chunk, which are dropped."""
KNOWN_MAX: Final = 2048
"""Max bytes of a head whose lines are remembered: a client's requests differ in a line or two."""
SHOWN_MAX: Final = 40
"""Max characters of a client's bytes in an error."""
HEAD_END: Final = b"\r\n\r\n"
_LINE_END: Final = b"\r\n"
_KNOWN: Final = 256
"""Max remembered lines."""
_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST: Final = re.compile(rb"(" + _TOKEN + rb") (/[\x21-\x7e]*+) HTTP/1\.([01])")
_FIELD: Final = re.compile(_TOKEN + rb":[\t\x20-\x7e\x80-\xff]*+")
_HEAD: Final = re.compile(_REQUEST.pattern + rb"(?:\r\n" + _FIELD.pattern + rb")*+")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*+;[\t\x20-\x7e\x80-\xff]*+)?")
_LENGTH: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_ONCE: Final = frozenset({"content-length", "transfer-encoding", "host", "content-type", "expect"})
_NOTHING: Final = frozenset({"", "identity"})


class BadHttp(Exception):
    """A request is refused, and its connection ends."""

    def __init__(self, problem: Problem, text: str) -> None:
        super().__init__(text)
        self.problem = problem


class Head(msgspec.Struct, frozen=True, gc=False):
    """The head of a request. `length` of its body in bytes, None for one in chunks."""

    method: str
    path: str
    fields: dict[str, str]
    length: int | None
    keeps: bool
    is_old: bool

    @property
    def continues(self) -> bool:
        """Whether the client waits for a word before it sends the body."""
        return "expect" in self.fields and not self.is_old


def read_head(data: bytes) -> Head:
    """Return the head in `data`, without the line ends behind it. Raises BadHttp."""
    if _HEAD.fullmatch(data) is None:
        raise _fault(data)
    first, *lines = str(data, "latin-1").split("\r\n")
    if len(lines) > FIELDS_MAX:
        raise BadHttp(problems.HEAD_TOO_LARGE, f"expected at most {FIELDS_MAX} fields, got more")
    is_known = len(data) <= KNOWN_MAX
    pairs = [*map(_known_pair if is_known else _pair, lines)]
    fields = dict(pairs)
    if len(fields) < len(pairs):
        fields = _joined(pairs)
    method, path, is_old = (_known_request if is_known else _request)(first)
    if not is_old and "host" not in fields:
        raise _bad("a field Host", b"none")
    if "expect" in fields or "content-encoding" in fields:
        _check_wishes(fields)
    wishes = fields["connection"].lower() if "connection" in fields else ""
    keeps = "close" not in wishes and not (is_old and "keep-alive" not in wishes)
    return Head(method, path, fields, _length(fields, is_old), keeps, is_old)


def _request(line: str) -> tuple[str, str, bool]:
    """Return method, path without its query, and whether it is HTTP/1.0, of a request line."""
    method, target, version = line.split(" ")
    return method, target.partition("?")[0], version.endswith("0")


def _pair(line: str) -> tuple[str, str]:
    """Return name and value of a field."""
    name, _, value = line.partition(":")
    return name.lower(), value.strip(" \t")


_known_request: Final = lru_cache(maxsize=_KNOWN)(_request)
_known_pair: Final = lru_cache(maxsize=_KNOWN)(_pair)


def _joined(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return fields of which some come more than once. Raises BadHttp where they must not."""
    fields: dict[str, str] = {}
    for name, value in pairs:
        if name in fields and name in _ONCE:
            raise _bad(f"the field {name} once", b"it twice")
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return fields


def _fault(data: bytes) -> BadHttp:
    """Return the error of the line that is none of a head's."""
    first, *lines = data.split(_LINE_END)
    if _REQUEST.fullmatch(first) is None:
        return _bad("a request line `METHOD /PATH HTTP/1.1`", first)
    line = next((line for line in lines if not _FIELD.fullmatch(line)), b"none")
    return _bad("fields `Name: value`, each on a line", line)


def _length(fields: dict[str, str], is_old: bool) -> int | None:
    """Return the bytes of the body, None for chunks. Raises BadHttp."""
    coding, length = fields.get("transfer-encoding"), fields.get("content-length")
    if coding is None and length is None:
        return 0
    if coding is not None:
        if length is not None or is_old or coding.lower() != "chunked":
            raise _bad("Content-Length, or Transfer-Encoding: chunked", coding.encode("latin-1"))
        return None
    assert length is not None
    if not _LENGTH.fullmatch(length):
        raise _bad("Content-Length in digits", length.encode("latin-1"))
    return int(length)


def _check_wishes(fields: dict[str, str]) -> None:
    """Raise BadHttp for an expectation or a content coding that nobody can meet."""
    expect, coding = fields.get("expect", "100-continue"), fields.get("content-encoding", "")
    if expect.lower() != "100-continue":
        text = f"Expect: expected 100-continue, got {expect[:SHOWN_MAX]!r}"
        raise BadHttp(problems.EXPECTATION_FAILED, text)
    if coding.lower() not in _NOTHING:
        text = f"Content-Encoding: expected none, got {coding[:SHOWN_MAX]!r}"
        raise BadHttp(problems.UNSUPPORTED_ENCODING, text)


class Body:
    """The body of one request, of at most `limit` bytes, which arrives in pieces."""

    def __init__(self, length: int | None, limit: int) -> None:
        """Raise BadHttp for a length over the limit."""
        self.data = bytearray()
        self._limit = limit
        self._is_chunked = length is None
        self._missing = length or 0
        self._is_last = False
        self._trailer = 0
        self._check(self._missing)

    def take(self, buffer: bytearray) -> bool:
        """Move what belongs to the body from `buffer`; return whether that is all. Raises
        BadHttp."""
        if not self._is_chunked:
            size = min(len(buffer), self._missing)
            self.data += buffer[:size]
            del buffer[:size]
            self._missing -= size
            return not self._missing
        while buffer:
            end = buffer.find(_LINE_END, 0, LINE_MAX + len(_LINE_END))
            if self._is_last:
                if not self._drop_line(buffer):
                    return False
                if end == 0:
                    return True
            elif end < 0:
                if len(buffer) > LINE_MAX:
                    raise _bad(f"a line of at most {LINE_MAX} bytes before a chunk", buffer)
                return False
            elif not self._take_chunk(buffer, end):
                return False
        return False

    def _take_chunk(self, buffer: bytearray, end: int) -> bool:
        """Move the chunk whose first line ends at `end`, if it is here as a whole."""
        found = _CHUNK.fullmatch(buffer, 0, end)
        if found is None:
            raise _bad("the size of a chunk in hexadecimal digits", buffer)
        size = int(found[1], 16)
        self._check(len(self.data) + size)
        start = end + len(_LINE_END)
        stop = start + size
        if not size:
            self._is_last = True
            del buffer[:start]
            return True
        if len(buffer) < stop + len(_LINE_END):
            return False
        if not buffer.startswith(_LINE_END, stop):
            raise _bad("a line end behind each chunk", buffer[stop:])
        self.data += buffer[start:stop]
        del buffer[: stop + len(_LINE_END)]
        return True

    def _drop_line(self, buffer: bytearray) -> bool:
        """Drop one line of the trailer, if it is here as a whole."""
        end = buffer.find(_LINE_END)
        if self._trailer + (len(buffer) if end < 0 else end) > TRAILER_MAX:
            raise BadHttp(
                problems.HEAD_TOO_LARGE, f"expected a trailer of at most {TRAILER_MAX} bytes"
            )
        if end < 0:
            return False
        if end and not _FIELD.fullmatch(buffer, 0, end):
            raise _bad("fields `Name: value` behind the last chunk", buffer)
        self._trailer += end + len(_LINE_END)
        del buffer[: end + len(_LINE_END)]
        return True

    def _check(self, size: int) -> None:
        if size > self._limit:
            text = f"the body: expected at most {self._limit} bytes (body_mib), got {size} or more"
            raise BadHttp(problems.BODY_TOO_LARGE, text)


def _bad(expected: str, got: bytes | bytearray) -> BadHttp:
    shown = bytes(got[:SHOWN_MAX]).decode("latin-1")
    return BadHttp(problems.BAD_REQUEST, f"expected {expected}, got {shown!r}")


def foreign(head: Head, address: str) -> str:
    """Return what a request has that one of this machine's own programs has not, "" for nothing.

    `address` is 127.0.0.1:PORT. A page of any site can send a form there, and with a name of its
    own that leads there it could read the answer, too.
    """
    own = (address, address.replace("127.0.0.1", "localhost"))
    host, origin = head.fields.get("host", ""), head.fields.get("origin")
    if host not in own:
        return f"Host: expected {own[0]} or {own[1]}, got {host[:80]!a}"
    if origin is not None and origin not in {f"http://{one}" for one in own}:
        return f"Origin: expected a page of http://{own[0]} or none, got {origin[:80]!a}"
    return ""
