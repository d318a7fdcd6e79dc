"""Requests to /v1 whose server dies: what is sent again, and what is refused afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from registry.model.functions import Limits
from tests.support.modelled import (
    CHAT,
    MESSAGES,
    Asked,
    ModelServer,
    asks,
    document,
    models,
    post,
)
from tests.support.proxied import Gate

AGAIN = [
    CHAT,
    MESSAGES,
    MESSAGES + "/count_tokens",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/moderations",
]
ONCE = ["/v1/responses", "/v1/images/generations", "/v1/audio/speech"]
DEADLY = {"model": "web", "input": "deadly"}


def dies_of(text: bytes) -> ModelServer:
    """Return a server that ends the connection at a request with a text."""

    def answer(asked: Asked) -> bytes | None:
        return None if text in asked.body else document(ok=1)

    return ModelServer(answer)


def hurry(one: Gate) -> None:
    """Let errors not wait for the cause of a death, which nobody publishes."""
    one.delivery._death_causes._timeout_s = 0.0


@pytest.mark.parametrize("path", AGAIN + ONCE)
@pytest.mark.parametrize("retry", ["auto", "always", "never"])
async def test_what_is_sent_again(tmp_path: Path, is_fast: bool, path: str, retry: Any) -> None:
    """Endpoints without effects are sent twice, others only where the function says so; an error
    has the protocol's shape."""
    server = dies_of(b"deadly")
    async with models(tmp_path, server, is_fast=is_fast, limits=Limits(retry=retry)) as one:
        answer = await asks(one, post(path, DEADLY))
        is_resent = retry == "always" or (retry == "auto" and path in AGAIN)
        assert len(server.asked) == (2 if is_resent else 1)
        assert answer.status == 502
        kind = "api_error" if path.startswith(MESSAGES) else "server_error"
        assert answer.json["error"]["type"] == kind
        await one.settled()


async def test_a_multipart_request_is_not_sent_again(tmp_path: Path, is_fast: bool) -> None:
    """A transcription costs, and is sent once."""
    server = dies_of(b"deadly")
    body = b"".join(
        [
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\ndeadly\r\n',
            b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nweb\r\n--b--\r\n',
        ]
    )
    async with models(tmp_path, server, is_fast=is_fast) as one:
        path = "/v1/audio/transcriptions"
        answer = await asks(one, post(path, body, "Content-Type: multipart/form-data; boundary=b"))
        assert (answer.status, len(server.asked)) == (502, 1)
        assert server.asked[0].body == body
        await one.settled()


async def test_a_second_server_answers(tmp_path: Path, is_fast: bool) -> None:
    """The client of a resent request sees no error, and its memory is given back."""
    count = 0

    def answer(asked: Asked) -> bytes | None:
        nonlocal count
        count += 1
        return None if count == 1 else document(model=asked.json["model"])

    async with models(tmp_path, ModelServer(answer), is_fast=is_fast) as one:
        one.sidecar.listens = False
        hurry(one)
        answered = await asks(one, post(CHAT, {"model": "web"}))
        assert (answered.status, answered.json, count) == (200, {"model": "web"}, 2)
        await one.settled()


async def test_a_body_that_kills_servers_is_refused(tmp_path: Path, is_fast: bool) -> None:
    """After two deaths it is poison: for a minute it is refused without being sent. Others are not.
    Neither is a body whose server only closes connections."""
    server = dies_of(b"deadly")
    async with models(tmp_path, server, is_fast=is_fast) as one:
        answer = await asks(one, post(CHAT, DEADLY))
        assert answer.json["error"]["code"] == "upstream_failed"
        assert len(server.asked) == 2

        one.sidecar.listens = False
        hurry(one)
        answer = await asks(one, post(CHAT, DEADLY))
        assert (answer.status, answer.json["error"]["code"]) == (502, "poison")
        assert "2 replicas died" in answer.json["error"]["message"]
        assert answer.fields["x-should-retry"] == "false"
        assert len(server.asked) == 4

        answer = await asks(one, post(CHAT, DEADLY))
        assert (answer.status, answer.json["error"]["code"]) == (502, "poison")
        assert 1 <= int(answer.fields["retry-after"]) <= 60
        assert len(server.asked) == 4

        assert (await asks(one, post(CHAT, {"model": "web", "input": "b"}))).status == 200
        answer = await asks(one, post("/v1/responses", DEADLY))
        assert answer.json["error"]["code"] == "replica_died"
        assert "x-should-retry" not in answer.fields
        assert len(server.asked) == 6
        await one.settled()


async def test_bodies_that_are_sent_once_are_no_poison(tmp_path: Path, is_fast: bool) -> None:
    """What is never sent again is not held against its body, either."""
    server = dies_of(b"deadly")
    async with models(tmp_path, server, is_fast=is_fast, limits=Limits(retry="never")) as one:
        one.sidecar.listens = False
        hurry(one)
        for _ in range(3):
            answer = await asks(one, post(CHAT, DEADLY))
            assert answer.json["error"]["code"] == "replica_died"
        assert len(server.asked) == 3
        await one.settled()
