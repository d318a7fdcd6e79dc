"""Odd requests to /v1: no server gets what it could take for another model or another body."""

from __future__ import annotations

import asyncio
import tracemalloc
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from pathlib import Path

import pytest

from gateway.http.models.request import RATE_MIN
from gateway.proxy.plan import State
from gateway.settings import MIB
from registry.model.servers import ModelApi
from tests.support.modelled import (
    CHAT,
    MESSAGES,
    ModelServer,
    answered,
    asks,
    chunked,
    document,
    head,
    models,
    post,
    read_request,
)
from tests.support.proxied import until

BODY = {"model": "web", "x": 1}
AUDIO = "/v1/audio/transcriptions"
EDITS = "/v1/images/edits"
FORM = (
    b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nRIFF\r\n'
    b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nweb\r\n--B--\r\n'
)


@pytest.mark.parametrize(
    "fields",
    [
        [],
        ["Content-Type: application/x-www-form-urlencoded"],
        ["Content-Type: application/json; charset=utf-7"],
        ["Content-Type: multipart/form-data; boundary=B"],
        ["Content-Type: a/b", "Content_Type: e/f"],
        ["Connection: content-type, accept-encoding"],
        ["Content-MD5: x", "Digest: sha-256=x", "Content-Digest: sha-256=:x:"],
    ],
)
async def test_the_server_reads_the_body_as_the_gateway_has(
    tmp_path: Path, is_fast: bool, fields: list[str]
) -> None:
    """Whatever the client says about its JSON, the server gets it as JSON, and with no digest,
    since the body may have changed."""
    server = ModelServer(document())
    api = ModelApi(served_model="another/model")
    async with models(tmp_path, server, is_fast=is_fast, api=api) as one:
        closes = not any(field.startswith("Connection") for field in fields)
        wire = await one.connect()
        wire.send(post(CHAT, BODY, *fields, closes=closes))
        assert (await answered(wire)).status == 200
        wire.close()
        [asked] = server.asked
        assert asked.json == {"model": "another/model", "x": 1}
        assert asked.fields["content-type"] == "application/json"
        assert asked.fields["accept-encoding"] == "identity"
        names = {"content_type", "content-md5", "digest", "content-digest"}
        assert not names & set(asked.fields)
        await one.settled()


async def test_a_form_keeps_its_boundary(tmp_path: Path, is_fast: bool) -> None:
    """The server gets the boundary in its plainest form, and the body with its own length."""
    server = ModelServer(document())
    kind = 'Content-Type: Multipart/Form-Data ; charset=UTF-8; BOUNDARY="B"'
    api = ModelApi(served_model="another/model")
    async with models(tmp_path, server, is_fast=is_fast, api=api) as one:
        assert (await asks(one, post(AUDIO, FORM, kind))).status == 200
        [asked] = server.asked
        assert asked.fields["content-type"] == "multipart/form-data; boundary=B"
        assert asked.body == FORM.replace(b"\r\nweb\r\n", b"\r\nanother/model\r\n")
        await one.settled()


async def test_an_edit_of_images_is_a_form_or_json(tmp_path: Path, is_fast: bool) -> None:
    """The Content-Type says which; the server gets the body as that and with its own name."""
    server = ModelServer(document())
    api = ModelApi(served_model="another/model")
    body = {"model": "web", "images": [{"image_url": "data:image/png;base64,AA=="}]}
    async with models(tmp_path, server, is_fast=is_fast, api=api) as one:
        for kind, sent in (("application/json", body), ("Application/JSON; charset=utf-8", body)):
            assert (await asks(one, post(EDITS, sent, f"Content-Type: {kind}"))).status == 200
        kind = 'multipart/form-data; boundary="B"'
        assert (await asks(one, post(EDITS, FORM, f"Content-Type: {kind}"))).status == 200
        changed = {**body, "model": "another/model"}
        assert [asked.json for asked in server.asked[:2]] == [changed] * 2
        assert server.asked[2].body == FORM.replace(b"\r\nweb\r\n", b"\r\nanother/model\r\n")
        types = [asked.fields["content-type"] for asked in server.asked]
        json_type = "application/json"
        assert types == [json_type, json_type, "multipart/form-data; boundary=B"]
        for kind in ("Content-Type: text/plain", "X: y"):
            answer = await asks(one, post(EDITS, sent, kind))
            text = "Content-Type: expected multipart/form-data or application/json, got"
            assert text in answer.json["error"]["message"]
            assert answer.status == 400
        assert len(server.asked) == 3
        await one.settled()


@pytest.mark.parametrize(
    "query", ["model=x", "a=b&mod%65l=x", "a=b;model", "Model=x", "model%00=x"]
)
async def test_a_query_that_names_a_model_is_refused(
    tmp_path: Path, is_fast: bool, query: str
) -> None:
    """Some servers would take that one."""
    server = ModelServer(document())
    async with models(tmp_path, server, is_fast=is_fast) as one:
        answer = await asks(one, post(f"{CHAT}?{query}", BODY))
        assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
        assert not server.asked
        await one.settled()


@pytest.mark.parametrize("coding", ["gzip", "br", "gzip, gzip", "\xff"])
async def test_a_coded_body_is_refused(tmp_path: Path, is_fast: bool, coding: str) -> None:
    """The answer says what is expected instead, before the body is read."""
    async with models(tmp_path, ModelServer(document()), is_fast=is_fast) as one:
        answer = await asks(one, post(CHAT, BODY, f"Content-Encoding: {coding}"))
        assert answer.status == 415
        assert "expected a body without a content coding" in answer.json["error"]["message"]
        await one.settled()


@pytest.mark.parametrize("path", [CHAT, MESSAGES, "/v1/none"])
@pytest.mark.parametrize("field", ["Content-Length: 1, 2", "Transfer-Encoding: x", "Host: a"])
async def test_a_head_that_is_no_request(tmp_path: Path, path: str, field: str) -> None:
    """Its refusal has the protocol's shape too."""
    async with models(tmp_path, ModelServer(document()), is_fast=True) as one:
        answer = await asks(one, head(path, field))
        assert (answer.status, answer.fields["connection"]) == (400, "close")
        assert answer.fields["content-type"] == "application/json"
        error = answer.json["error"]
        assert error["type"] == "invalid_request_error"
        if path == MESSAGES:
            assert answer.json["request_id"] == answer.fields["x-request-id"]
        else:
            assert set(error) == {"message", "type", "param", "code"}
        await one.settled()


async def test_a_head_that_is_too_large(tmp_path: Path) -> None:
    """It is refused before it ends, in the protocol's shape."""
    async with models(tmp_path, ModelServer(document()), is_fast=True) as one:
        wire = await one.connect()
        wire.send(head(MESSAGES, "X: " + "x" * 40_000)[:-4])
        answer = await answered(wire)
        assert (answer.status, answer.json["type"]) == (431, "error")
        wire.close()
        await one.settled()


async def test_a_body_that_trickles(
    tmp_path: Path, is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte now and then does not hold a place for ever: there is a minimal rate."""
    now = 1000.0
    monkeypatch.setattr("gateway.http.models.request.monotonic", lambda: now)
    monkeypatch.setattr("gateway.http.models.router.monotonic", lambda: now)
    async with models(tmp_path, ModelServer(document()), is_fast=is_fast) as one:
        body_s = one.gateway.invoker.settings.body_read_s
        wire = await one.connect()
        wire.send(head(CHAT, "Content-Length: 90000", "Connection: close") + bytes(2 * RATE_MIN))

        async def held(count: int) -> None:
            await until(lambda: one.delivery.held.bytes == count)

        await held(2 * RATE_MIN)
        for byte in range(1, 4):
            now += body_s / 2
            wire.send(b"x")
            await held(2 * RATE_MIN + byte)
            one.sweep()
            assert len(one.gateway.invoker.arriving) == (byte < 3)
            if byte == 2:
                now += 1.0  # the seconds that its first bytes are worth
        answer = await answered(wire)
        assert (answer.status, answer.json["error"]["code"]) == (408, "body_timeout")
        wire.close()
        await one.settled()


async def test_small_chunks_take_no_more_memory_than_their_bytes(tmp_path: Path) -> None:
    """A body in chunks of two bytes is one buffer."""
    count = 50_000
    coded = chunked(*[b"xx"] * count)
    async with models(tmp_path, ModelServer(document()), is_fast=True) as one:
        wire = await one.connect()
        wire.send(head(CHAT, "Transfer-Encoding: chunked"))
        await until(lambda: bool(one.gateway.invoker.arriving))
        tracemalloc.start()
        try:
            for at in range(0, len(coded), 50_000):
                wire.send(coded[at : at + 50_000])
                await wire.writer.drain()
            await until(lambda: one.delivery.held.bytes == 2 * count)
            assert tracemalloc.get_traced_memory()[0] < 2 * count + MIB
        finally:
            tracemalloc.stop()
        wire.close()
        await one.settled()


async def test_a_body_counts_until_the_server_has_read_it(tmp_path: Path, is_fast: bool) -> None:
    """A large body that may not be sent again waits in memory for a server that does not read."""
    reads = asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        await reads.wait()
        await read_request(reader)
        writer.write(document())

    body = b'{"model":"web","x":"%b"}' % (b"a" * 16 * MIB)
    async with models(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(post("/v1/responses", body))
        await until(lambda: any(each.state is State.OPEN for each in one.exchanges.all()))
        assert one.delivery.held.bytes == len(body)
        reads.set()
        assert (await answered(wire)).status == 200
        wire.close()
        await one.settled()
