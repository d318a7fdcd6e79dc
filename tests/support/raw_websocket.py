"""WebSocket client over a raw connection (RFC 6455)."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping

from tests.support.raw_http import Connection, Got, request

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


async def handshake(
    connection: Connection,
    target: str,
    wanted: int = 101,
    fields: Mapping[str, str] | None = None,
) -> Got:
    """Send an opening handshake; return the answer, which must have the status `wanted`."""
    key = base64.b64encode(os.urandom(16)).decode()
    sent = {
        **(fields or {}),
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Version": "13",
    }
    await connection.send(request("GET", target, None, sent))
    got = await connection.answer()
    assert got.status == wanted, got
    if wanted == 101:
        accepted = base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()
        assert got.get("sec-websocket-accept") == accepted, got
    return got


def masked(opcode: int, data: bytes) -> bytes:
    """Encode one masked final frame."""
    mask = os.urandom(4)
    size = len(data)
    if size < 126:
        head = bytes([0x80 | opcode, 0x80 | size])
    elif size < 1 << 16:
        head = bytes([0x80 | opcode, 0xFE]) + size.to_bytes(2, "big")
    else:
        head = bytes([0x80 | opcode, 0xFF]) + size.to_bytes(8, "big")
    whole = int.from_bytes(data, "big") ^ int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    return head + mask + whole.to_bytes(size, "big")


async def read(connection: Connection) -> tuple[int, bytes]:
    """Read one frame of a server; return opcode and data."""
    first, size = await connection.reader.readexactly(2)
    if size == 126:
        size = int.from_bytes(await connection.reader.readexactly(2), "big")
    elif size == 127:
        size = int.from_bytes(await connection.reader.readexactly(8), "big")
    return first & 0x0F, await connection.reader.readexactly(size)
