"""WebSocket echo at `/ws` (RFC 6455)."""

from __future__ import annotations

import asyncio
import base64
import hashlib

from tally import Tally
from wire import Exchange

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
FRAME_MAX = 1 << 24


def accepted(key: str) -> str:
    """Return the value of Sec-WebSocket-Accept for a key (RFC 6455, section 4.2.2)."""
    return base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()


def frame(opcode: int, data: bytes) -> bytes:
    """Encode one unmasked final frame."""
    head = bytes([0x80 | opcode])
    if len(data) < 126:
        return head + bytes([len(data)]) + data
    if len(data) < 1 << 16:
        return head + b"\x7e" + len(data).to_bytes(2, "big") + data
    return head + b"\x7f" + len(data).to_bytes(8, "big") + data


async def read(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read one masked frame; return opcode and data. Raises IncompleteReadError, ValueError."""
    first, second = await reader.readexactly(2)
    size = second & 0x7F
    if size == 126:
        size = int.from_bytes(await reader.readexactly(2), "big")
    elif size == 127:
        size = int.from_bytes(await reader.readexactly(8), "big")
    if not second & 0x80 or size > FRAME_MAX:
        raise ValueError("expected a masked frame of at most 16 MiB")
    mask = await reader.readexactly(4)
    data = await reader.readexactly(size)
    whole = int.from_bytes((mask * (size // 4 + 1))[:size], "big") ^ int.from_bytes(data, "big")
    return first & 0x0F, whole.to_bytes(size, "big")


async def websocket(exchange: Exchange, tally: Tally) -> None:
    """Echo every message until the peer closes; `key=wrong` accepts with a wrong key."""
    request = exchange.request
    exchange.is_over = True
    key = request.get("sec-websocket-key")
    if request.get("upgrade").lower() != "websocket" or not key:
        await exchange.answer(b"expected a WebSocket\n", 426, {"Upgrade": "websocket"})
        return
    answer = accepted("wrong" if request.query.get("key") == "wrong" else key)
    fields = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": answer}
    if offered := request.get("sec-websocket-protocol"):
        fields["Sec-WebSocket-Protocol"] = offered.partition(",")[0].strip()
    exchange.head(101, fields)
    tally.entered()
    try:
        await _echo(exchange, tally)
    except (asyncio.IncompleteReadError, ValueError):
        pass
    finally:
        tally.left()
    await exchange.close()


async def _echo(exchange: Exchange, tally: Tally) -> None:
    while True:
        opcode, data = await read(exchange.reader)
        tally.frames += 1
        if opcode == CLOSE:
            await exchange.send(frame(CLOSE, data))
            return
        await exchange.send(frame(PONG if opcode == PING else opcode, data))
