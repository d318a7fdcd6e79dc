"""WebSockets (RFC 6455): opening handshakes (section 4), and the borders of frames (section 5).

Pure.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Final

from gateway.proxy.framing import NO_BODY
from gateway.proxy.request_head import RequestHead
from gateway.proxy.response_head import SWITCHING, ResponseHead, UpstreamError
from registry.errors import BadRequest

REALTIME: Final = b"realtime"
"""Subprotocol of OpenAI's realtime API."""
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY: Final = re.compile(rb"[A-Za-z0-9+/]{21}[AQgw]==")
"""base64 of 16 bytes: the last digit has four unused bits."""
POLICY_VIOLATION: Final = 1008
"""Code of a close frame: the endpoint received what violates its policy (section 7.4.1)."""
GOING_AWAY: Final = 1001
"""Code of a close frame: the endpoint goes away."""
_CLOSE: Final = 0x88
"""First byte of a close frame: the last fragment, opcode 8."""
_MASKED: Final = 0x80
_LENGTH_16, _LENGTH_64 = 126, 127
"""Lengths that say that the real one follows, in 16 or 64 bits."""
_CONTROL_MAX: Final = 125
"""Max bytes of the content of a control frame."""
_HEAD_MAX: Final = 14
"""Max bytes of a frame's head: two, 64 bits of length, 32 of mask."""
_LENGTH_END: Final = 1 << 63
"""First length that no frame has: the most significant bit must be 0 (section 5.2)."""
_FINAL: Final = 0x80
_OPCODES: Final = 0x0F
_CLOSING, _PING, _PONG = 8, 9, 10
_CONTROL: Final = 8
"""First opcode of control frames."""


def is_handshake(head: RequestHead) -> bool:
    """Return whether a request asks for a WebSocket. `check_handshake` must follow."""
    return b"websocket" in head.upgrade


def check_handshake(head: RequestHead) -> bytes:
    """Return the key of a valid opening handshake. Raises BadRequest.

    `gateway.pages.origins` checks the origin, as of every other request.
    """
    values = head.fields.values
    if head.method != b"GET":
        raise BadRequest("WebSocket: expected the method GET")
    if head.framing != NO_BODY:
        raise BadRequest("WebSocket: expected a request without a body")
    if values.get(b"sec-websocket-version") != b"13":
        raise BadRequest("Sec-WebSocket-Version: expected 13")
    key = values.get(b"sec-websocket-key", b"")
    if not _KEY.fullmatch(key):
        raise BadRequest("Sec-WebSocket-Key: expected 16 bytes in base64")
    return key


def accept_of(key: bytes) -> bytes:
    """Return the Sec-WebSocket-Accept that answers a key."""
    digest = hashlib.sha1(key + _GUID, usedforsecurity=False).digest()
    return base64.b64encode(digest)


def is_switched(head: ResponseHead, key: bytes | None) -> bool:
    """Return whether an answer opens the WebSocket that was asked for with `key`.

    `key` is None if the request was no handshake. Any status but 101 is an ordinary answer. Raises
    UpstreamError for a 101 that is not the answer to this handshake.
    """
    if head.status != SWITCHING:
        return False
    if key is None:
        raise UpstreamError("expected no 101, because no other protocol was asked for")
    if head.fields.items(b"upgrade") != [b"websocket"] or b"upgrade" not in head.options:
        raise UpstreamError("101: expected Upgrade: websocket and Connection: Upgrade")
    if head.fields.get(b"sec-websocket-accept") != accept_of(key):
        raise UpstreamError("101: expected the Sec-WebSocket-Accept of this handshake")
    return True


def agreed_protocol(head: ResponseHead, offered: tuple[bytes, ...]) -> bytes:
    """Return the subprotocol of a 101, b"" for none (section 4.2.2); `offered`: those of the
    handshake.

    Many servers speak REALTIME without saying so, and a browser that has offered it ends such a
    WebSocket: then it is agreed. Raises UpstreamError for one that was not offered.
    """
    chosen = head.fields.get(b"sec-websocket-protocol")
    if not chosen:
        return REALTIME if REALTIME in offered else b""
    if chosen not in offered:
        raise UpstreamError("101: expected a Sec-WebSocket-Protocol of those that were offered")
    return chosen


class FrameFollower:
    """Follows the frames of one direction by their heads, incrementally: content is not read.

    Keeps at most one incomplete head (section 5.2). Fragments, and control frames between them, are
    frames like others. Bytes that are no frames are opaque: an over-long or fragmented control
    frame, or a length of 64 bits or more; all that follows counts as data then.
    """

    __slots__ = ("_begun", "_is_data", "_is_lost", "_left", "data_moved", "is_closed")

    def __init__(self) -> None:
        self._left = 0
        self._begun = b""
        self._is_data = self._is_lost = False
        self.data_moved = 0
        """Grows with the head of each data frame, and with each piece of its content. Pings, pongs
        and close frames are no data; other opcodes are, also those that no standard gives a
        meaning."""
        self.is_closed = False
        """Whether a close frame has begun."""

    @property
    def is_between(self) -> bool:
        """Whether the bytes so far end with a frame, so that another one may follow."""
        return not (self._left or self._begun or self._is_lost)

    def feed(self, data: bytes) -> None:
        """Follow the next bytes. Takes time in proportion to the number of frames."""
        at, size = self._left, len(data)
        if at and self._is_data:
            self.data_moved += min(at, size)
        if at >= size or self._is_lost:
            self._left = at - size if at else 0
            self.data_moved += size if self._is_lost else 0
            return
        if begun := self._begun:
            head = begun + data[: _HEAD_MAX - len(begun)]
            end = self._begin(head, 0)
            at = end - len(begun) if end else size
            self._begun = b"" if end else head
        while at < size and not self._is_lost:
            end = self._begin(data, at)
            if not end:
                self._begun = data[at:]
            at = end or size
        self._left = 0 if self._is_lost else at - size

    def _begin(self, data: bytes, at: int) -> int:
        """Begin the frame at `at`; return the index of its end, 0 if its head is incomplete."""
        have = len(data) - at
        if have < 2:
            return 0
        first, second = data[at], data[at + 1]
        length, head = second & ~_MASKED, 6 if second & _MASKED else 2
        opcode = first & _OPCODES
        if length > _CONTROL_MAX:
            more = 2 if length == _LENGTH_16 else 8
            head += more
        else:
            more = 0
        if have < head:
            return 0
        if more:
            length = int.from_bytes(data[at + 2 : at + 2 + more])
        is_broken = opcode >= _CONTROL and (more or not first & _FINAL)
        if is_broken or length >= _LENGTH_END:
            self._is_lost = True
        self._is_data = self._is_lost or opcode not in (_CLOSING, _PING, _PONG)
        self.data_moved += self._is_data
        self.is_closed |= opcode == _CLOSING
        return at + head + length


def close_frame(code: int, reason: str) -> bytes:
    """Return a server's close frame (section 5.5.1)."""
    content = code.to_bytes(2) + reason.encode()
    if len(content) > _CONTROL_MAX:
        raise ValueError(f"expected at most {_CONTROL_MAX} bytes, got {len(content)}")
    return bytes((_CLOSE, len(content))) + content
