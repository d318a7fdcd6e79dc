"""Exchanges of a key that is removed, through both client sides."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from pathlib import Path

import pytest

from gateway.proxy.plan import State
from gateway.revocation import AT_ONCE
from tests.support.proxied import Gate, gate, until

KEYS = {"fn_first-of-two": ("invoke:web",), "fn_other-of-two": ("invoke:web",)}
HEAD = b"Host: 127.0.0.1\r\nAuthorization: Bearer fn_%b-of-two\r\n"
UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
SWITCHED = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndata:\r\n"
OPEN_END = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ndata:"


def request(key: bytes, more: bytes = b"") -> bytes:
    """Return a request with one of the keys."""
    return b"GET /fn/web/x HTTP/1.1\r\n" + HEAD % key + more + b"\r\n"


def remove(one: Gate) -> None:
    """Remove the first key."""
    ring = one.gateway.invoker.access.ring
    ring.remove(next(key for key in ring.all() if key.id == "first-"))


@pytest.mark.parametrize(
    ("said", "is_frame_whole"),
    [
        pytest.param(b"\x81\x02hi", True, id="between two frames"),
        pytest.param(b"\x81\x05hi", False, id="in the middle of a frame"),
    ],
)
async def test_a_websocket_is_closed(
    tmp_path: Path, is_fast: bool, said: bytes, is_frame_whole: bool
) -> None:
    """Its client gets a close frame with code 1008, or a reset where no frame can follow; that of
    the other key gets neither."""

    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCHED + said)
        await reader.read()

    async with gate(tmp_path, serve, is_fast=is_fast, keys=KEYS) as one:
        wires = []
        for key in (b"first", b"other"):
            wire = await one.connect()
            wire.send(request(key, UPGRADE))
            await wire.head()
            assert await wire.exactly(4) == said
            wires.append(wire)
        remove(one)

        if is_frame_whole:
            assert await wires[0].rest() == b"\x88\x15\x03\xf0the key was removed"
        else:
            with pytest.raises(ConnectionError):
                await wires[0].rest()
        assert len(one.exchanges) == 1
        assert not wires[1].reader.at_eof()
        for wire in wires:
            wire.close()
        await one.settled()


@pytest.mark.parametrize("answer", [CHUNKED, OPEN_END])
async def test_a_stream_is_cut(tmp_path: Path, is_fast: bool, answer: bytes) -> None:
    """The client sees that the answer is incomplete: no last chunk, or a reset."""

    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await reader.read()

    async with gate(tmp_path, serve, is_fast=is_fast, keys=KEYS) as one:
        wire = await one.connect()
        wire.send(request(b"first"))
        await wire.head()
        await wire.reader.readuntil(b"data:")
        remove(one)

        if answer is CHUNKED:
            assert await wire.rest() == b"\r\n"
        else:
            with pytest.raises(ConnectionError):
                await wire.rest()
        wire.close()
        await one.settled()


@pytest.mark.parametrize("is_cold", [True, False])
async def test_what_has_no_answer_yet_gets_one(
    tmp_path: Path, is_fast: bool, is_cold: bool
) -> None:
    """A request that waits, for a replica or for its server's answer, is answered with 401: what it
    would begin may last for hours."""
    begun = asyncio.Event()

    async def serve(reader: Reader, _writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        begun.set()
        await reader.read()

    async with gate(tmp_path, serve, is_fast=is_fast, keys=KEYS, is_cold=is_cold) as one:
        wire = await one.connect()
        wire.send(request(b"first"))
        if is_cold:
            await until(lambda: len(one.exchanges) == 1)
        else:
            await asyncio.wait_for(begun.wait(), 60)
        remove(one)

        head, body = await wire.answer()
        assert head.startswith(b"HTTP/1.1 401 ")
        assert b"the key was removed" in body
        wire.close()
        await one.settled()


async def test_what_is_held_is_cut_first(tmp_path: Path, is_fast: bool) -> None:
    """Of many requests of one key none takes the place of another one that was cut before."""
    heads: list[bytes] = []

    async def serve(reader: Reader, writer: Writer) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(CHUNKED)
        await reader.read()

    async with gate(tmp_path, serve, is_fast=is_fast, keys=KEYS) as one:
        wires = [await one.connect() for _ in range(AT_ONCE + 50)]
        for wire in wires:
            wire.send(request(b"first"))
        await until(lambda: len(one.exchanges) == len(wires) and len(heads) > 50)
        await until(
            lambda: sum(each.state is not State.HELD for each in one.exchanges.all()) == len(heads)
        )
        remove(one)

        assert [each.state is State.HELD for each in one.exchanges.all()] == [False] * 50
        await one.settled()
        for wire in wires:
            wire.close()
