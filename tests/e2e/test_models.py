"""Tests of /v1 in front of a real server function, over two gateway workers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.chaos.footprint import until
from tests.support import chat_server
from tests.support.process_server import ServerProcess, server_process
from tests.support.raw_http import Connection, Got, ask, connected, request

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CHAT = "/v1/chat/completions"
COMMENT = b": waiting\n\n"
CALLS = 24


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with what the server has served."""
    return tmp_path_factory.mktemp("counts") / "counts"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, counts: Path) -> Iterator[ServerProcess]:
    """A server with two gateway workers; the function `chat` takes a second to start."""
    folder = tmp_path_factory.mktemp("models")
    with server_process(folder / "data", "--workers", "2", "--cpu-slots", "2") as server:
        api = 'served_model = "served"\ncomment_after_s = 0.1'
        options = ("--model", "served", "--start", "1.1", "--counts", str(counts))
        chat_server.deploy(server, folder, "chat", *options, api=api)
        server.fnctl("alias", "add", "chat", "gpt/small")
        yield server
        complaints = list(server.complaints)
    assert complaints == []


@pytest.fixture
async def connections(server: ServerProcess) -> AsyncIterator[list[Connection]]:
    """Connections, of which each worker has some."""
    opened = [connected(port_of(server)) for _ in range(CALLS)]
    yield [await each.__aenter__() for each in opened]
    for each in opened:
        await each.__aexit__(None, None, None)


def port_of(server: ServerProcess) -> int:
    """Return the port of the server."""
    port = urlsplit(server.url).port
    assert port is not None
    return port


def body_of(text: str, **more: Any) -> bytes:
    """Return the body of a chat's request."""
    messages = [{"role": "user", "content": text}]
    return json.dumps({"messages": messages, "model": "gpt/small", **more}).encode()


def events_of(got: Got) -> list[dict[str, Any]]:
    """Return the data of a stream's events."""
    lines = [line for line in bytes(got.body).split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(line.removeprefix(b"data: ")) for line in lines]


async def test_a_cold_model_streams(server: ServerProcess) -> None:
    """The wait is bridged by comments, and the stream has one head, the client's name of the model
    and a clean end."""
    got = await ask(port_of(server), "POST", CHAT, body_of("hello", stream=True))
    assert (got.status, got.end) == (200, "whole")
    assert got.body.startswith(COMMENT)
    assert got.body.endswith(b"data: [DONE]\n\n")
    assert {each["model"] for each in events_of(got)} == {"gpt/small"}
    assert not [each for each in events_of(got) if not each["choices"]]
    assert got.get("x-accel-buffering") == "no"


async def test_both_workers_answer(server: ServerProcess, connections: list[Connection]) -> None:
    """Every worker knows the model by each of its names, lists it and refuses others."""
    asked: list[tuple[bytes, int]] = [
        (request("POST", CHAT, body_of("a")), 200),
        (request("POST", CHAT, body_of("a", model="chat@1")), 200),
        (request("POST", CHAT, body_of("a", model="served")), 404),
        (request("POST", CHAT, b"{"), 400),
        (request("GET", CHAT), 405),
        (request("GET", "/v1/models/gpt%2Fsmall"), 200),
        (request("POST", CHAT, body_of("a", stream=True, model="chat")), 200),
    ]

    async def each(connection: Connection) -> None:
        for sent, status in asked:
            await connection.send(sent)
            got = await connection.answer()
            assert (got.status, got.end) == (status, "whole")
            if got.closes:  # aiohttp's reader has answered
                return

    await asyncio.gather(*map(each, connections))


async def test_a_server_that_dies(server: ServerProcess) -> None:
    """In the middle of a stream it is an error event without a clean end; the next call has another
    replica. A body that kills two is refused."""
    got = await ask(port_of(server), "POST", CHAT, body_of("a [die=3]", stream=True))
    assert (got.status, got.end) == (200, "cut")
    assert events_of(got)[-1]["error"]["type"] == "server_error"
    assert len(events_of(got)) > 2
    killing = body_of("a [die=0]")
    got = await ask(port_of(server), "POST", CHAT, killing)
    assert (got.status, got.json()["error"]["code"]) == (502, "poison")
    got = await ask(port_of(server), "POST", CHAT, body_of("b"))
    assert got.status == 200


async def test_a_client_that_leaves(
    server: ServerProcess, connections: list[Connection], counts: Path
) -> None:
    """The server notices within moments, whichever worker has the client."""
    long = body_of("a [tokens=100000] [rate=20]", stream=True)
    for connection in connections[:2]:
        await connection.send(request("POST", CHAT, long))
        await connection.reader.readuntil(b"data: ")
    for connection in connections[:2]:
        connection.writer.transport.abort()

    async def have_left() -> bool:
        return Counter(one["end"] for one in chat_server.counted(counts))["left"] == 2

    assert await until(have_left, 5)
