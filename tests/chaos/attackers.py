"""Hostile HTTP clients in a process of idle priority.

Usage: `python -m tests.chaos.attackers KIND PORT COUNT SECONDS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import struct
import sys
import time
import zlib

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


MUTANTS = 2500
KINDS = {"bombs": bombs, "uploads": uploads, "heads": heads, "mutants": mutants}
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
    print("ready", flush=True)  # noqa: T201 - read by the scenario
    asyncio.run(attack(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
