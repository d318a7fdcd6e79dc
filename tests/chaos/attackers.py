"""Hostile HTTP clients in a process of idle priority.

Usage: `python -m tests.chaos.attackers KIND PORT COUNT SECONDS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import random
import socket
import struct
import sys
import time
import zlib
from collections import Counter

from tests.support.fronts.requests import odd, plain

MIB = 2**20
BOMB = 1024 * MIB
UPLOAD = 20 * MIB
HEAD = b"POST /fn/affine HTTP/1.1\r\nHost: localhost\r\n"


async def bombs(port: int, _number: int, end_s: float) -> None:
    """Send gzip bombs: 1 MiB bodies that inflate to 1 GiB."""
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + bomb)
            await reader.readuntil(b"\r\n\r\n")
            writer.close()


async def uploads(port: int, _number: int, end_s: float) -> None:
    """Start 20 MiB uploads: send the first mebibyte at once, then 1000 bytes every 0.5 s."""
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError):
            _reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % UPLOAD + b"x" * MIB)
            while time.monotonic() < end_s and not writer.is_closing():
                await writer.drain()
                writer.write(b"x" * 1000)
                await asyncio.sleep(0.5)
            writer.close()


async def heads(port: int, number: int, end_s: float) -> None:
    """Send an incomplete request head, then one header line every 5 s."""
    await asyncio.sleep(number / 2000)
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEAD)
            while time.monotonic() < end_s and not reader.at_eof():
                writer.write(b"X: drip\r\n")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(100), 5)
            writer.close()


async def mutants(port: int, number: int, end_s: float) -> None:
    """Send requests with random bytes inserted, deleted and changed. Print how many were sent and
    how many got a 5xx other than 503."""
    chance = random.Random(number)
    sent = blamed = 0
    while time.monotonic() < end_s and sent < MUTANTS:
        data = bytearray(odd(chance) if chance.random() < 0.7 else plain(chance))
        for _ in range(chance.randrange(4)):
            at = chance.randrange(len(data) + 1)
            data[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
        sent += 1
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            writer.write_eof()
            answer = await reader.read()
            blamed += answer.count(b"HTTP/1.1 5") - answer.count(b"HTTP/1.1 503")
            writer.close()
    print(f"mutants {sent} blamed {blamed}", flush=True)  # noqa: T201 - read by the scenario


async def cold_bodies(port: int, _number: int, end_s: float) -> None:
    """Send 60 MB of valid JSON that does not fit the signature."""
    await _send_again(port, COLD + b"Content-Length: %d\r\n\r\n" % len(bomb) + bomb, end_s)


async def cold_gzips(port: int, _number: int, end_s: float) -> None:
    """Send the same, compressed."""
    head = COLD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    await _send_again(port, head % len(bomb) + bomb, end_s)


async def tomls(port: int, number: int, end_s: float) -> None:
    """Send deploys whose manifests are costly to parse. The key is in the variable TOKEN."""
    manifest = BAD_MANIFESTS[number % len(BAD_MANIFESTS)]
    body = json.dumps({"files": [], "manifest": manifest}).encode()
    head = b"POST /admin/v1/functions/bomb/revisions HTTP/1.1\r\nHost: localhost\r\n"
    head += b"Authorization: Bearer %b\r\n" % os.environ["TOKEN"].encode()
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    await _send_again(port, head + body, end_s)


async def sleepers(port: int, _number: int, end_s: float) -> None:
    """Ask for an answer of 16 MB and read nothing of it."""
    body = b'{"inputs":{"x":[[1,2,3,4]]}}'
    head = b"POST /fn/wide HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-npy\r\n"
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    with contextlib.suppress(OSError):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", port))
        await loop.sock_sendall(client, head + body)
        await asyncio.sleep(max(0.0, end_s - time.monotonic()))
        client.close()


async def _send_again(port: int, data: bytes, end_s: float) -> None:
    """Send a request on new connections and read the answer's head, until the end."""
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            answer = await reader.readuntil(b"\r\n\r\n")
            statuses[answer[9:12].decode()] += 1
            writer.close()


def make_cold_body() -> bytes:
    """Return 60 MB of JSON: one row of fifteen million numbers."""
    return b'{"inputs":{"x":[[' + b"0.5," * 15_000_000 + b"1]]}}"


MUTANTS = 2500
COLD = b"POST /fn/cold HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BAD_MANIFESTS = (
    "a" + ".b" * 12_000 + " = 1",
    "a" + ".b" * 30_000 + " = 1",
    "a = " + "[" * 30_000,
    "a = " + "{a = " * 12_000,
    "a = " + "9" * 60_000,
    "\n".join(f"a{number} = 1" for number in range(7_000)),
    "\n".join(f"[a.b{number}.c.d]" for number in range(4_000)),
    "[[a]]\n" * 10_000,
    "x" * 2_000_000,
)
KINDS = {
    "bombs": bombs,
    "uploads": uploads,
    "heads": heads,
    "mutants": mutants,
    "cold-bodies": cold_bodies,
    "cold-gzips": cold_gzips,
    "tomls": tomls,
    "sleepers": sleepers,
}
statuses: Counter[str] = Counter()
bomb = b""


async def attack(kind: str, port: int, count: int, seconds: float) -> None:
    """Run `count` attackers of one kind concurrently."""
    end_s = time.monotonic() + seconds
    await asyncio.gather(*(KINDS[kind](port, number, end_s) for number in range(count)))


def make_bomb() -> bytes:
    """Return 1 GiB of zeros, compressed with gzip level 9. One compressed mebibyte ends at a full
    flush, so it can be repeated (RFC 1951, RFC 1952)."""
    piece, pieces = bytes(MIB), BOMB // MIB
    packer = zlib.compressobj(9, wbits=-15)
    block = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
    crc = 0
    for _ in range(pieces):
        crc = zlib.crc32(piece, crc)
    head = b"\x1f\x8b\x08\0\0\0\0\0\2\xff"
    return head + block * pieces + packer.flush() + struct.pack("<II", crc, BOMB % 2**32)


if __name__ == "__main__":
    os.nice(19)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if sys.argv[1] == "bombs":
        bomb = make_bomb()
    elif sys.argv[1] == "cold-bodies":
        bomb = make_cold_body()
    elif sys.argv[1] == "cold-gzips":
        bomb = gzip.compress(make_cold_body())
    print("ready", flush=True)  # noqa: T201 - read by the scenario
    asyncio.run(attack(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
    if statuses:
        print(dict(statuses), flush=True)  # noqa: T201 - read by the scenario
