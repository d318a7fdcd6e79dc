"""Hostile clients of gRPC in a process of idle priority.

Usage: `python -m tests.chaos.grpc_attackers KIND PORT COUNT SECONDS [TOKEN]`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import sys
import time
from typing import Any

import grpc

from gateway.grpc.messages import SERVICE

MIB = 2**20
BOMB = 63 * MIB
HALF = 16 * MIB
PARAMETERS = 2_000_000
UNBOUNDED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, WINDOW = 0, 1, 4, 6, 8
END_HEADERS, ACK = 4, 1
INITIAL_WINDOW, FRAME_MAX = 65_535, 16_384
INITIAL_WINDOW_SIZE = 4


def _field(number: int, data: bytes) -> bytes:
    """Return one length-delimited field of Protocol Buffers."""
    size, length = bytearray(), len(data)
    while length > 127:
        size.append(length & 127 | 128)
        length >>= 7
    size.append(length)
    return bytes([number << 3 | 2]) + bytes(size) + data


def _parameters() -> bytes:
    """Return a message of 63 MiB: 2,000,000 parameters, three times."""
    entries = b"".join(b"\x1a\x09\x0a\x07%07d" % number for number in range(PARAMETERS))
    return _field(2, b"affine") + (entries * 3)[: BOMB // 11 * 11]


async def _call(port: int, method: str, body: bytes, metadata: Any) -> None:
    options = [*UNBOUNDED, ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        call: Any = channel.unary_unary(f"/{SERVICE}/{method}")
        with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):
            await asyncio.wait_for(call(body, metadata=metadata, timeout=20), 25)


async def loads(port: int, _number: int, end_s: float) -> None:
    """Send RepositoryModelLoad with 63 MiB of parameters, without a key."""
    while time.monotonic() < end_s:
        await _call(port, "RepositoryModelLoad", parameters, ())


async def keyed_loads(port: int, _number: int, end_s: float) -> None:
    """Send the same message with the key."""
    while time.monotonic() < end_s:
        await _call(
            port, "RepositoryModelLoad", parameters, (("authorization", f"Bearer {token}"),)
        )


async def infers(port: int, _number: int, end_s: float) -> None:
    """Send ModelInfer with 63 MiB of raw tensor, with the key."""
    body = _field(1, b"affine") + _field(7, bytes(BOMB))
    while time.monotonic() < end_s:
        await _call(port, "ModelInfer", body, (("authorization", f"Bearer {token}"),))


async def watches(port: int, number: int, end_s: float) -> None:
    """Keep a watch of health open, without a key."""
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", number % 16 == 0)]
    ) as channel:
        while time.monotonic() < end_s:
            call: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
            with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(max(0.1, end_s - time.monotonic())):
                    async for _ in call:
                        pass
            await asyncio.sleep(0.5)


async def halves(port: int, _number: int, end_s: float) -> None:
    """Send half of a ModelInfer message of 16 MiB, as far as the server's windows permit, and
    wait."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": f"/{SERVICE}/ModelInfer",
            ":authority": "localhost",
            "content-type": "application/grpc",
            "te": "trailers",
            "authorization": f"Bearer {token}",
        }
        block = b"".join(_literal(name) for name in fields.items())
        writer.write(PREFACE + _frame(SETTINGS, 0, 0, b"") + _frame(HEADERS, END_HEADERS, 1, block))
        writer.write(_frame(DATA, 0, 1, b"\0" + struct.pack(">I", HALF)))
        unsent, whole, stream = HALF // 2, INITIAL_WINDOW - 5, INITIAL_WINDOW - 5
        size = INITIAL_WINDOW
        while time.monotonic() < end_s:
            while unsent and min(whole, stream) > 0:
                count = min(unsent, whole, stream, FRAME_MAX)
                writer.write(_frame(DATA, 0, 1, bytes(count)))
                unsent, whole, stream = unsent - count, whole - count, stream - count
            async with asyncio.timeout(max(0.1, end_s - time.monotonic())):
                head = await reader.readexactly(9)
                data = await reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags, ident = head[3], head[4], int.from_bytes(head[5:], "big")
            if kind == WINDOW and ident:
                stream += int.from_bytes(data, "big")
            elif kind == WINDOW:
                whole += int.from_bytes(data, "big")
            elif kind == PING and not flags:
                writer.write(_frame(PING, ACK, 0, data))
            elif kind == SETTINGS and not flags:
                for at in range(0, len(data), 6):
                    name, value = struct.unpack(">HI", data[at : at + 6])
                    if name == INITIAL_WINDOW_SIZE:
                        stream, size = stream + value - size, value
                writer.write(_frame(SETTINGS, ACK, 0, b""))
        writer.close()


def _frame(kind: int, flags: int, stream: int, data: bytes) -> bytes:
    """Return one frame (RFC 9113 section 4.1)."""
    return len(data).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + data


def _literal(field: tuple[str, str]) -> bytes:
    """Return a field without indexing, with a new name (RFC 7541 section 6.2.2)."""
    return b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in field)


KINDS = {
    "loads": loads,
    "keyed-loads": keyed_loads,
    "infers": infers,
    "watches": watches,
    "halves": halves,
}
token = ""
parameters = b""


async def attack(kind: str, port: int, count: int, seconds: float) -> None:
    """Run `count` attackers of one kind concurrently."""
    end_s = time.monotonic() + seconds

    async def one(number: int) -> None:
        with contextlib.suppress(TimeoutError):
            await KINDS[kind](port, number, end_s)

    await asyncio.gather(*(one(number) for number in range(count)))


if __name__ == "__main__":
    os.nice(19)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    token = sys.argv[5] if len(sys.argv) > 5 else ""
    if sys.argv[1] in ("loads", "keyed-loads"):
        parameters = _parameters()
    print("ready", flush=True)  # noqa: T201 - read by the scenario
    asyncio.run(attack(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
