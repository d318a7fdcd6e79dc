"""Reading of one answer of a function's server: its heads, then its body. Pure."""

from __future__ import annotations

from typing import Final

from gateway.proxy.fields import Malformed, find_head_end
from gateway.proxy.framing import BodyFramer, Data, LengthBody, UntilCloseBody, make_framer
from gateway.proxy.response_head import (
    HEAD_MAX,
    NO_STATUS_LINE,
    ResponseHead,
    UpstreamError,
    parse_response_head,
)
from registry.errors import UpstreamFailed
from registry.field_classes import Direction

CONTINUE: Final = 100
INTERIM_MAX: Final = 1000
"""Max interim heads (1xx) of one answer."""
INTERIM_BYTES_MAX: Final = 256 * 1024
"""Max bytes of all of them."""
_BEGINNING: Final = b"HTTP/1."
_NO_BODY: Final = LengthBody(0)


class AnswerReader:
    """Reader of the answer to one request with `method`."""

    __slots__ = (
        "_head",
        "_interim_bytes",
        "_interims",
        "_method",
        "_searched",
        "body",
        "continues",
        "raw",
        "unchunks",
    )

    def __init__(self, method: bytes) -> None:
        self._method = method
        self._head = bytearray()
        self._searched = 0
        self._interims = self._interim_bytes = 0
        self.body: BodyFramer = _NO_BODY
        """Framer of the body, once the final head is complete."""
        self.continues = 0
        """How many of the heads were "100 Continue"."""
        self.raw = b""
        """The last complete head."""
        self.unchunks = False
        """Whether `take` returns the content of chunks only."""

    @property
    def head_bytes(self) -> int:
        """Bytes of a head that is not complete."""
        return len(self._head)

    def feed(self, data: bytes) -> None:
        """Add bytes before the end of the final head."""
        self._head += data

    def next_head(self) -> ResponseHead | None:
        """Return the next head, None if it is not complete. Raises UpstreamError."""
        try:
            end = find_head_end(self._head, self._searched)
        except Malformed as error:
            raise UpstreamError(str(error)) from None
        if end < 0:
            self._searched = len(self._head)
            if not self._head.startswith(_BEGINNING[: self._searched]):
                raise UpstreamError(NO_STATUS_LINE)
            if self._searched > HEAD_MAX:
                raise UpstreamError(f"expected a head of at most {HEAD_MAX} bytes")
            return None
        self._searched = 0
        raw = self.raw = bytes(self._head[:end])
        del self._head[:end]
        head = parse_response_head(raw, self._method)
        if head.is_interim:
            self._interims += 1
            self.continues += head.status == CONTINUE
            self._interim_bytes += end
            if self._interims > INTERIM_MAX or self._interim_bytes > INTERIM_BYTES_MAX:
                limits = f"{INTERIM_MAX} interim heads of {INTERIM_BYTES_MAX} bytes in all"
                raise UpstreamError(f"expected at most {limits}")
        else:
            self.begin(head)
        return head

    def begin(self, head: ResponseHead) -> None:
        """Begin the body behind the final head."""
        self.body = make_framer(head.framing, Direction.ANSWER)

    def take_rest(self) -> bytes:
        """Return the bytes after the final head."""
        rest, self._head = bytes(self._head), bytearray()
        return rest

    def take(self, data: bytes) -> tuple[bytes, bool]:
        """Return the part of `data` that the client gets, and whether all of it is the body's.

        Surplus bytes reach no client. Raises Malformed.
        """
        if self.unchunks:
            pieces: list[Data] = []
            count = self.body.feed(data, pieces)
            content = bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
            return content, count == len(data)
        count = self.body.feed(data)
        return (data, True) if count == len(data) else (data[:count], False)

    @property
    def ends_with_connection(self) -> bool:
        """Whether the end of the connection ends the body."""
        return isinstance(self.body, UntilCloseBody)


def not_http(text: str) -> UpstreamFailed:
    """Return the error for bytes of a server that are no valid answer."""
    return UpstreamFailed(f"the server's answer is not valid HTTP/1.1: {text}")
