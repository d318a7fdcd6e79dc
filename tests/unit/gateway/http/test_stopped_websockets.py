"""WebSockets whose replica stops: what their clients are told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from runtime_image.contract.link import Kind
from tests.support.proxied import gate, until
from tests.unit.gateway.http.test_slashless import SWITCHED, UPGRADE

HEAD = b"GET /fn/web/ws HTTP/1.1\r\nHost: 127.0.0.1\r\n" + UPGRADE + b"\r\n"


@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize("is_stopping", [True, False])
async def test_a_client_is_told_that_the_replica_stops(
    tmp_path: Path, is_fast: bool, is_stopping: bool
) -> None:
    """By the close code 1001 after QUIESCE; otherwise the end of the connection passes as it is."""
    ends = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCHED)
        await ends.wait()

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(HEAD)
        assert b" 101 " in await wire.head()
        if is_stopping:
            one.sidecar.send(Kind.QUIESCE)
            await until(lambda: "QUIESCED" in one.sidecar.kinds())
        ends.set()

        told = b"\x88\x24\x03\xe9the function's replica was stopped"
        if is_stopping:
            assert await wire.exactly(len(told)) == told
        assert await wire.rest() == b""
        assert "TUNNEL" in one.sidecar.kinds()
        wire.close()
        await one.settled()
