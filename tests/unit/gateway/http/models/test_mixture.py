"""Many clients of a model at once that leave, stall and err, before a server that does, too."""

from __future__ import annotations

import asyncio
import itertools
import json
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gateway.settings import MIB, GatewaySettings
from registry.model.functions import ExchangeLimits, Limits
from registry.model.servers import ModelApi
from tests.support.modelled import (
    CHAT,
    END,
    EVENTS,
    MESSAGES,
    Answer,
    chunked,
    dechunked,
    document,
    event,
    head,
    models,
    parsed,
    read_request,
)
from tests.support.proxied import Gate, warm

CLIENTS = 60
DONE = b"data: [DONE]\n\n"
WAYS = ["right"] * 5 + ["dies before", "dies within", "hangs", "refuses", "no HTTP"]
BEFORE = {
    "dies before": b"",
    "hangs": b"",
    "no HTTP": b"what?\r\n\r\n",
    "refuses": b'HTTP/1.1 400 No\r\nContent-Length: 15\r\n\r\n{"error": "no"}',
}


async def turns(count: int) -> None:
    """Run turns of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


def odd_server(random: Random) -> Any:
    """Return a server that answers each request as it says itself."""

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            asked = (await read_request(reader)).json
            way = asked["way"]
            if way == "hangs":
                await reader.read()
            if way in BEFORE:
                writer.write(BEFORE[way])
            elif not asked["stream"]:
                whole = document(model=asked["model"], text="a" * random.randrange(3000))
                writer.write(whole[:-5] if way == "dies within" else whole)
            else:
                await stream(writer, asked["model"], is_whole=way != "dies within")
            if way not in ("right", "refuses"):
                return

    async def stream(writer: Writer, model: str, *, is_whole: bool) -> None:
        body = b"".join(event(model=model, choices=[n]) for n in range(random.randrange(1, 30)))
        rest = body + DONE if is_whole else body[:-1]
        writer.write(EVENTS)
        while rest:
            size = random.randrange(1, 200)
            writer.write(chunked(rest[:size]))
            rest = rest[size:]
            if random.random() < 0.1:
                await writer.drain()
                await turns(20)
        writer.write(END if is_whole else b"")

    return serve


async def odd_client(one: Gate, random: Random) -> tuple[str, bool, Answer] | None:
    """Send one request, perhaps a part of it, and perhaps leave. Return how the server answers it,
    whether it is for a stream, and the answer; None if there is no whole head."""
    await turns(random.randrange(300))
    way, is_stream = random.choice(WAYS), random.random() < 0.6
    more = {"x": "a" * random.choice([1, 1000, 100_000, 400_000]), "n": random.randrange(9)}
    body = json.dumps({**more, "model": "web", "stream": is_stream, "way": way}).encode()
    path = random.choice([CHAT, MESSAGES, "/v1/responses"])
    expects = ["Expect: 100-continue"] if random.random() < 0.2 else []
    if random.random() < 0.3:
        raw = head(path, *expects, "Connection: close", "Transfer-Encoding: chunked")
        raw += chunked(*(body[at : at + 30_000] for at in range(0, len(body), 30_000))) + END
    else:
        raw = head(path, *expects, "Connection: close", f"Content-Length: {len(body)}") + body
    wire = await one.connect()
    try:
        if random.random() < 0.15:
            wire.send(raw[: random.randrange(len(raw))])
            await turns(random.randrange(200))
            return None
        wire.send(raw)
        if random.random() < 0.3:
            await turns(random.randrange(300))
            if random.random() < 0.5:
                wire.writer.transport.abort()
            return None
        answer = parsed(await wire.rest())
    except ConnectionError:
        return None
    finally:
        wire.close()
    return way, is_stream, answer


def check(way: str, is_stream: bool, answer: Answer) -> None:
    """Check that an answer is whole, or an error that the client sees as one."""
    if answer.status != 200:
        assert answer.json["error"]
        return
    if answer.fields.get("transfer-encoding") != "chunked":
        is_whole = len(answer.body) == int(answer.fields["content-length"])
        assert is_whole == (way == "right")
        return
    content, is_whole = dechunked(answer.body)
    if not is_stream:
        assert is_whole == (way == "right")
        return
    data = [line for line in content.split(b"\n") if line.startswith(b"data: {")]
    documents = [json.loads(line.removeprefix(b"data: ")) for line in data if b"ping" not in line]
    if DONE in content:
        assert (way, is_whole) == ("right", True)
        assert {each["model"] for each in documents} == {"web"}
    else:
        assert documents[-1]["error"], (way, answer)
        assert not is_whole or way == "refuses"


@pytest.mark.parametrize("ending", ["abort", "drain"])
async def test_every_answer_is_whole_or_an_error(
    tmp_path: Path, is_fast: bool, ending: Any
) -> None:
    """Also where memory, queue and time are short; nothing is left of any request."""
    random = Random(f"{is_fast} {ending}")
    api = ModelApi("served", on_disconnect=ending, comment_after_s=0.02, body_mib=1)
    more: dict[str, Any] = {
        "settings": GatewaySettings(port=0, fast_front=is_fast, held_bytes_max=4 * MIB),
        "exchange": ExchangeLimits(first_byte_s=0.3),
        "limits": Limits(queue=20, wait_s=5.0),
        "is_cold": True,
    }
    async with models(tmp_path, odd_server(random), is_fast=is_fast, api=api, **more) as one:
        one.delivery._death_causes._timeout_s = 0.01

        async def minutes() -> None:
            for turn in itertools.count():
                one.sweep()
                one.sidecar.listens = turn % 10 < 5
                await turns(20)

        passing = asyncio.create_task(minutes())
        clients = [
            asyncio.create_task(odd_client(one, Random(f"{is_fast} {ending} {number}")))
            for number in range(CLIENTS)
        ]
        await turns(150)
        await warm(one)
        found = [each for each in await asyncio.gather(*clients) if each is not None]
        for each in found:
            check(*each)
        assert len([1 for _, _, answer in found if answer.status == 200]) > CLIENTS / 10
        await one.settled()
        passing.cancel()
