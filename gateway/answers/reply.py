"""A whole HTTP answer as plain data, and its bytes."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final, NamedTuple
from wsgiref.handlers import format_date_time

Body = bytes | bytearray | memoryview
PIECE: Final = 64 * 1024
"""Bytes of a body from which it is written on its own instead of being copied behind its head."""
CLOSE: Final = ("Connection", "close")
_PHRASES: Final = {int(status): status.phrase for status in HTTPStatus}


class Reply(NamedTuple):
    """What a client gets. `headers` are all but Content-Length, Date and Server, in order; names
    and values are this program's own, never a replica's, nor a client's but for a request id of
    few harmless characters."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: Body

    @property
    def closes(self) -> bool:
        """Whether the connection ends with it."""
        return CLOSE in self.headers


class Writer:
    """Replies to bytes of HTTP/1.1 (RFC 9112). `wall` gives Unix seconds, for Date."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._second = -1
        self._tail = ""

    def pieces(self, reply: Reply) -> list[Body]:
        """The bytes to write in order; a large body is a piece of its own."""
        second = int(self._wall())
        if second != self._second:
            self._second = second
            self._tail = f"\r\nDate: {format_date_time(second)}\r\nServer: fngate\r\n\r\n"
        status, headers, body = reply
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
        head = (
            f"HTTP/1.1 {status} {_PHRASES[status]}\r\n{lines}"
            f"Content-Length: {len(body)}{self._tail}"
        ).encode("latin-1")
        if len(body) < PIECE:
            return [head + body]
        return [head, body]
