"""Hostile clients of gRPC in a process of idle priority.

Usage: `python -m tests.chaos.grpc_attackers KIND PORT COUNT SECONDS [TOKEN]`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from typing import Any

import grpc

from gateway.grpc.messages import SERVICE
from tests.support.http2_sender import partial_message

MIB = 2**20
BOMB = 63 * MIB
HALF = 16 * MIB
PARAMETERS = 2_000_000
UNBOUNDED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


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
    with contextlib.suppress(OSError):
        async with partial_message(port, f"/{SERVICE}/ModelInfer", token, HALF, HALF // 2):
            await asyncio.sleep(max(0.0, end_s - time.monotonic()))


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
