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

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY: Final = re.compile(rb"[A-Za-z0-9+/]{21}[AQgw]==")
"""base64 of 16 bytes: the last digit has four unused bits."""
POLICY_VIOLATION: Final = 1008
"""Code of a close frame: the endpoint received what violates its policy (section 7.4.1)."""
_CLOSE: Final = 0x88
"""First byte of a close frame: the last fragment, opcode 8."""
_MASKED: Final = 0x80
_LENGTH_16, _LENGTH_64 = 126, 127
"""Lengths that say that the real one follows, in 16 or 64 bits."""
_CONTROL_MAX: Final = 125
"""Max bytes of the content of a control frame."""
_AT_ONCE: Final = 256
"""Max frames that are followed in one piece of data: more would take too long."""


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


class FrameFollower:
    """Follows the borders of a server's frames, whose content it does not read."""

    __slots__ = ("_begun", "_is_lost", "_left")

    def __init__(self) -> None:
        self._left = 0
        self._begun = b""
        self._is_lost = False

    @property
    def is_between(self) -> bool:
        """Whether the bytes so far end with a frame, so that another one may follow."""
        return not (self._left or self._begun or self._is_lost)

    def feed(self, data: bytes) -> None:
        """Follow the next bytes."""
        at, size = self._left, len(data)
        if at >= size:
            self._left = at - size
            return
        if self._is_lost:
            return
        if self._begun:
            data = self._begun + data
            size = len(data)
        self._left, self._begun = 0, b""
        for _ in range(_AT_ONCE):
            length = _frame_size(data, at)
            if not length:
                self._begun = data[at:]
                return
            at += length
            if at >= size:
                self._left = at - size
                return
        self._is_lost = True


def _frame_size(data: bytes, at: int) -> int:
    """Return the bytes of the frame that begins at `at`, with its head; 0 if that is incomplete."""
    if len(data) < at + 2:
        return 0
    second = data[at + 1]
    length, head = second & ~_MASKED, 6 if second & _MASKED else 2
    if length == _LENGTH_16:
        more = 2
    elif length == _LENGTH_64:
        more = 8
    else:
        return head + length
    if len(data) < at + 2 + more:
        return 0
    return head + more + int.from_bytes(data[at + 2 : at + 2 + more])


def close_frame(code: int, reason: str) -> bytes:
    """Return a server's close frame (section 5.5.1)."""
    content = code.to_bytes(2) + reason.encode()
    if len(content) > _CONTROL_MAX:
        raise ValueError(f"expected at most {_CONTROL_MAX} bytes, got {len(content)}")
    return bytes((_CLOSE, len(content))) + content
