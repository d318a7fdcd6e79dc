"""Opening handshakes of WebSockets (RFC 6455 section 4). Pure."""

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
