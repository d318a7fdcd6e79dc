"""Comments that keep a waiting stream's connection open. Pure.

WHATWG HTML, "Server-sent events": clients ignore lines that begin with a colon. Clients of
Anthropic's API expect events `ping`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.v1.endpoints import Protocol

EACH_S: Final = 10.0
"""Max seconds between two comments."""
_COMMENTS: Final = {
    Protocol.OPENAI: b": waiting\n\n",
    Protocol.ANTHROPIC: b'event: ping\ndata: {"type":"ping"}\n\n',
}


class WaitingStream:
    """The comments of one stream that begins at `began_s`. Times in monotonic seconds.

    The first one is due after `after_s`: it tells the client that the status is 200, which cannot
    be taken back. A shorter `after_s` is one for proxies with a shorter idle limit, so the others
    follow as fast.
    """

    __slots__ = ("_comment", "_due_s", "_each_s")

    def __init__(self, protocol: Protocol, began_s: float, after_s: float) -> None:
        self._comment = _COMMENTS[protocol]
        self._due_s = began_s + after_s
        self._each_s = min(EACH_S, after_s)

    def due(self, now: float) -> bytes:
        """Return the comment that is due, b"" for none."""
        if now < self._due_s:
            return b""
        self._due_s = now + self._each_s
        return self._comment

    def wrote(self, now: float) -> None:
        """Note that something else was written: the connection is not idle."""
        self._due_s = max(self._due_s, now + self._each_s)

    @staticmethod
    def head(added: Iterable[tuple[str, str]], *, keeps: bool) -> bytes:
        """Return the head of an answer that begins with a comment; `keeps`: the connection may
        serve another request. `added`: its further fields."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in added)
        return (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
            b"%bTransfer-Encoding: chunked\r\nConnection: %b\r\n\r\n"
        ) % (lines.encode("latin-1"), b"keep-alive" if keeps else b"close")
