"""Comments that keep a waiting stream's connection open. Pure.

WHATWG HTML, "Server-sent events": clients ignore lines that begin with a colon. Clients of
Anthropic's API expect events `ping`.
"""

from __future__ import annotations

from typing import Final

from gateway.v1.endpoints import Protocol

EACH_S: Final = 10.0
"""Seconds between two comments."""
_COMMENTS: Final = {
    Protocol.OPENAI: b": waiting\n\n",
    Protocol.ANTHROPIC: b'event: ping\ndata: {"type":"ping"}\n\n',
}


class WaitingStream:
    """The comments of one stream that begins at `began_s`. Times in monotonic seconds.

    The first one is due after `after_s`: it tells the client that the status is 200, which cannot
    be taken back.
    """

    __slots__ = ("_after_s", "_comment", "_due_s")

    def __init__(self, protocol: Protocol, began_s: float, after_s: float) -> None:
        self._comment = _COMMENTS[protocol]
        self._due_s = began_s + after_s
        self._after_s = after_s

    def due(self, now: float) -> bytes:
        """Return the comment that is due, b"" for none."""
        if now < self._due_s:
            return b""
        self._due_s = now + EACH_S
        return self._comment

    def wrote(self, now: float) -> None:
        """Note that something else was written: the connection is not idle."""
        self._due_s = max(self._due_s, now + EACH_S)

    @staticmethod
    def head(request_id: str, *, keeps: bool) -> bytes:
        """Return the head of an answer that begins with a comment; `keeps`: the connection may
        serve another request."""
        return (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
            b"Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\nX-Request-Id: %b\r\n"
            b"Transfer-Encoding: chunked\r\nConnection: %b\r\n\r\n"
        ) % (request_id.encode(), b"keep-alive" if keeps else b"close")
