"""Repeated heads of /v1: what is remembered, and what is decided anew for each request."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from registry.catalog import Deployed
from registry.model.servers import ModelApi
from registry.openness import Openness
from tests.support import nouns
from tests.support.modelled import (
    CHAT,
    ModelServer,
    answered,
    asks,
    dechunked,
    document,
    event,
    head,
    models,
    post,
)
from tests.support.peers import KnownPast
from tests.support.proxied import Gate

RESPONSES = "/v1/responses"
MIB = 1024 * 1024
KEYS = {"fn_key-of-one": ("invoke",), "fn_key-of-another": ("invoke",)}
KEY_LINES = ("Authorization: Bearer fn_key-of-one", "Fn-Key: fn_key-of-another")


def add_model(one: Gate, body_mib: int) -> None:
    """Deploy another model, "more"."""
    revision = nouns.server_revision("more", api=ModelApi(body_mib=body_mib))
    one.gateway.invoker.catalog.put(Deployed(nouns.function("more"), revision))


def padded(size: int) -> dict[str, Any]:
    """Return a body of more than `size` bytes for the model "web"."""
    return {"model": "web", "x": "a" * size}


async def test_heads_and_their_routes_are_remembered(tmp_path: Path) -> None:
    """One entry for a head from its second request on, and one for each model that it names; each
    request counts as an arrival."""
    async with models(tmp_path, ModelServer(document(ok=1)), is_fast=True) as one:
        heads, history = one.gateway.parts.heads, cast("KnownPast", one.gateway.invoker.history)
        known = []
        for name in ("web", "web", "web", "web@1", "web@1"):
            assert (await asks(one, post(CHAT, {"model": name}))).status == 200
            known.append(len(heads._known))
        assert known == [0, 2, 2, 3, 3]
        one.gateway.invoker.key_times.flush()
        assert history.arrivals == [("default", "web")] * 5
        await one.settled()


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (padded(MIB), 413, "body_too_large"),
        ({"model": "web", "previous_response_id": "r"}, 400, "bad_request"),
        ({"model": "web", "background": True}, 400, "bad_request"),
        ({"model": "nobody"}, 404, "model_not_found"),
        (b"{", 400, "bad_request"),
    ],
)
async def test_each_body_is_checked(
    tmp_path: Path, is_fast: bool, body: dict[str, Any] | bytes, status: int, code: str
) -> None:
    """A known head and a known route admit no body that they would not have admitted before."""
    api = ModelApi(body_mib=1)
    async with models(tmp_path, ModelServer(document(ok=1)), is_fast=is_fast, api=api) as one:
        add_model(one, 2)
        for _ in range(3):
            assert (await asks(one, post(RESPONSES, {"model": "web"}))).status == 200
        for _ in range(2):
            answer = await asks(one, post(RESPONSES, body))
            assert (answer.status, answer.json["error"]["code"]) == (status, code)
        await one.settled()


async def test_a_length_is_checked_with_its_head(tmp_path: Path, is_fast: bool) -> None:
    """A body that is too large for every model is refused before it comes, also behind a head that
    is known with another length."""
    api = ModelApi(body_mib=1)
    async with models(tmp_path, ModelServer(document(ok=1)), is_fast=is_fast, api=api) as one:
        large = head(CHAT, "Connection: close", f"Content-Length: {2 * MIB}")
        for _ in range(3):
            assert (await asks(one, post(CHAT, {"model": "web"}))).status == 200
        wire = await one.connect()
        wire.send(large)
        answer = await answered(wire)
        assert (answer.status, answer.json["error"]["code"]) == (413, "body_too_large")
        wire.close()
        await one.settled()


async def test_a_larger_model_takes_larger_bodies_at_once(tmp_path: Path, is_fast: bool) -> None:
    """The limit of bodies is that of the models that there are."""
    api = ModelApi(body_mib=1)
    async with models(tmp_path, ModelServer(document(ok=1)), is_fast=is_fast, api=api) as one:
        body = {"model": "nobody", "x": "a" * MIB}
        for _ in range(3):
            assert (await asks(one, post(CHAT, body))).status == 413
        add_model(one, 2)
        for _ in range(3):
            assert (await asks(one, post(CHAT, body))).status == 404
        await one.settled()


async def test_a_server_that_stops_refuses_known_heads(tmp_path: Path, is_fast: bool) -> None:
    """What was decided about a head does not admit requests to a server that shuts down."""
    async with models(tmp_path, ModelServer(document(ok=1)), is_fast=is_fast) as one:
        for _ in range(3):
            assert (await asks(one, post(CHAT, {"model": "web"}))).status == 200
        await one.gateway.gate.close()
        answer = await asks(one, post(CHAT, {"model": "web"}))
        assert (answer.status, answer.json["error"]["code"]) == (503, "shutting_down")
        await one.settled()


async def test_usage_is_for_clients_that_ask_for_it(tmp_path: Path, is_fast: bool) -> None:
    """Of a stream whose client did not ask for its usage the last event is taken out, also where
    a request with the same head did ask, and the server's answer has the same head."""
    first = event(choices=[1])
    events = first + event(choices=[], usage={"prompt_tokens": 1, "completion_tokens": 2})
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b"
    server = ModelServer(answer % (len(events), events))
    plain: dict[str, Any] = {"model": "web", "stream": True}
    asking = {**plain, "stream_options": {"include_usage": True}}
    async with models(tmp_path, server, is_fast=is_fast) as one:
        for body in (asking, asking, asking, plain, plain, asking):
            got = await asks(one, post(CHAT, body))
            assert dechunked(got.body) == (events if body is asking else first, True)
        await one.settled()


@pytest.mark.parametrize(
    ("lines", "begins", "ends", "code"),
    [
        (KEY_LINES, Openness.OPEN, Openness.CLOSED, 401),
        ((KEY_LINES[0], "Origin: https://a.example"), Openness.CLOSED, Openness.OPEN, 403),
    ],
    ids=["two keys", "a page of any origin"],
)
async def test_whom_an_open_server_lets_in_is_decided_anew(
    tmp_path: Path,
    is_fast: bool,
    lines: tuple[str, ...],
    begins: Openness,
    ends: Openness,
    code: int,
) -> None:
    """An open server takes no notice of a second key, and a closed one lets in the pages of any
    origin with a key: neither holds when the operator decides otherwise."""
    given: dict[str, Any] = {"keys": KEYS, "cors_origins": ("*",), "is_fast": is_fast}
    async with models(tmp_path, ModelServer(document(ok=1)), **given) as one:
        one.gateway.invoker.access.ring.decide(begins)
        for _ in range(3):
            assert (await asks(one, post(CHAT, {"model": "web"}, *lines))).status == 200
        one.gateway.invoker.access.ring.decide(ends)
        assert (await asks(one, post(CHAT, {"model": "web"}, *lines))).status == code
        await one.settled()
