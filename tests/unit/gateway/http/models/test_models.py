"""Requests to /v1: which function gets them, what its server gets, and who may ask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from registry.catalog import Deployed
from registry.model.functions import ExchangeLimits, Limits
from registry.model.servers import ModelApi, PathRules
from tests.support import nouns
from tests.support.modelled import (
    CHAT,
    MESSAGES,
    ModelServer,
    asks,
    document,
    head,
    models,
    parsed,
    post,
)
from tests.support.proxied import quiet, server_function

KEYS = {"fn_all": ("invoke",), "fn_web": ("invoke:web",), "fn_other": ("invoke:other",)}


@pytest.mark.parametrize(
    ("model", "revision"), [("web", "web@1"), ("web@1", "web@1"), ("gpt/small:1", "web@1")]
)
async def test_a_model_has_several_names(
    tmp_path: Path, is_fast: bool, model: str, revision: str
) -> None:
    """The function's name, a reference to a revision and an alias mean the same server."""
    server = ModelServer(document(model=model, choices=[]))
    async with models(tmp_path, server, is_fast=is_fast) as one:
        answer = await asks(one, post(CHAT + "?a=b", {"messages": [], "model": model}))
        assert (answer.status, answer.json["model"]) == (200, model)
        assert answer.fields["fn-revision"] == revision
        assert [asked.line for asked in server.asked] == ["POST /v1/chat/completions?a=b HTTP/1.1"]
        assert server.asked[0].json == {"messages": [], "model": model}
        await one.settled()


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        *((one, "") for one in ("nope", "digits", "digits@1", "digit", " ")),
        *((one, "; did you mean 'web'?") for one in ("web@2", "Web")),
        ("gpt/small", "; did you mean 'gpt/small:1'?"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_model_that_does_not_exist(
    tmp_path: Path, is_fast: bool, path: str, model: str, hint: str
) -> None:
    """Unknown names and functions that do not answer at /v1 are the same 404, which proposes
    similar models; nothing is asked."""
    server = ModelServer(document())
    async with models(tmp_path, server, is_fast=is_fast) as one:
        answer = await asks(one, post(path, {"model": model}))
        assert answer.status == 404
        text = f"no model {model!r} that this key may use: GET /v1/models lists them{hint}"
        if path == CHAT:
            kind, code = "invalid_request_error", "model_not_found"
            error = {"message": text, "type": kind, "param": None, "code": code}
            assert answer.json == {"error": error}
        else:
            assert answer.json["error"] == {"type": "not_found_error", "message": text}
            assert answer.json["request_id"] == answer.fields["x-request-id"]
        assert not server.asked
        await one.settled()


async def test_a_model_of_others_does_not_exist(tmp_path: Path, is_fast: bool) -> None:
    """A key that may not invoke a function gets the answer for a name that nobody has."""
    server = ModelServer(document())
    async with models(tmp_path, server, is_fast=is_fast, keys=KEYS) as one:
        found = []
        for model in ("web", "none", "gpt/small:1", "web@1", "wed"):
            request = post(CHAT, {"model": model}, "Authorization: Bearer fn_other")
            answer = await asks(one, request)
            varying = {"x-request-id", "date", "content-length"}
            fields = {key: value for key, value in answer.fields.items() if key not in varying}
            found.append((answer.status, fields, answer.body.replace(model.encode(), b"M")))
        assert all(each == found[0] for each in found)
        assert found[0][0] == 404
        assert not server.asked
        await one.settled()


KEY_CASES = [
    # endpoint, fields, status
    (CHAT, ["Authorization: Bearer fn_web"], 200),
    (CHAT, ["authorization: bearer fn_all"], 200),
    (CHAT, ["Fn-Key: fn_web"], 200),
    (CHAT, ["Fn-Key: fn_web", "Authorization: Bearer fn_web"], 200),
    (CHAT, ["Fn-Key: fn_web", "Authorization: Basic dTpw"], 200),
    (CHAT, ["Authorization: Bearer fn_web", "x-api-key: fn_all"], 200),
    (MESSAGES, ["x-api-key: fn_web"], 200),
    (MESSAGES, ["x-api-key: fn_web", "Authorization: Bearer fn_web"], 200),
    (MESSAGES, ["x-api-key: fn_web", "Authorization: bearer fn_web"], 200),
    (MESSAGES, ["x-api-key: fn_web", "Authorization: Basic dTpw"], 200),
    (MESSAGES + "/count_tokens", ["X-Api-Key: fn_web"], 200),
    (MESSAGES, ["x-api-key: fn_web", "Authorization: Bearer "], 200),
    (CHAT, [], 401),
    (CHAT, ["x-api-key: fn_web"], 401),
    (CHAT, ["Authorization: Bearer fn_wrong"], 401),
    (CHAT, ["Authorization: Basic fn_web"], 401),
    (CHAT, ["Authorization: fn_web"], 401),
    (CHAT, ["Fn-Key: fn_all", "Authorization: Bearer fn_web"], 401),
    (CHAT, ["Authorization: Bearer fn_web", "Authorization: Bearer fn_web"], 401),
    (MESSAGES, ["x-api-key: fn_wrong"], 401),
    (MESSAGES, ["x-api-key:"], 401),
    (MESSAGES, ["x-api-key: fn_web", "x-api-key: fn_web"], 401),
    (MESSAGES, ["x-api-key: fn_web", "Authorization: Bearer fn_all"], 401),
    (MESSAGES, ["x-api-key: fn_web", "Fn-Key: fn_all"], 401),
]


@pytest.mark.parametrize(("path", "fields", "status"), KEY_CASES)
async def test_keys(
    tmp_path: Path, is_fast: bool, path: str, fields: list[str], status: int
) -> None:
    """One key counts, in the fields that clients of the endpoint use. No key reaches the server."""
    server = ModelServer(document())
    async with models(tmp_path, server, is_fast=is_fast, keys=KEYS) as one:
        answer = await asks(one, post(path, {"model": "web"}, *fields))
        assert answer.status == status
        if status == 401:
            kind = answer.json["error"]["type"]
            assert kind == "authentication_error"
            assert answer.fields["www-authenticate"].startswith("Bearer")
            assert not server.asked
        else:
            [asked] = server.asked
            assert not {"authorization", "x-api-key", "fn-key"} & set(asked.fields)
        await one.settled()


@pytest.mark.parametrize("name", ["Authorization: Bearer ", "x-api-key: "])
async def test_a_server_without_keys_takes_any(tmp_path: Path, is_fast: bool, name: str) -> None:
    """Clients need some key to start at all; it is no key of this server, and goes nowhere."""
    server = ModelServer(document())
    async with models(tmp_path, server, is_fast=is_fast) as one:
        answer = await asks(one, post(MESSAGES, {"model": "web"}, f"{name}sk-none"))
        assert answer.status == 200
        assert "sk-none" not in str(server.asked)
        await one.settled()


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize(
    ("field", "status"),
    [
        ("Origin: http://evil.example", 403),
        ("Sec-Fetch-Site: cross-site", 403),
        ("Origin: http://127.0.0.1", 200),
        ("X-Forwarded-For: 1.2.3.4", 200),
    ],
)
async def test_pages_of_others_may_not_ask(
    tmp_path: Path, is_fast: bool, path: str, field: str, status: int
) -> None:
    """A page of another origin gets 403, as everywhere."""
    server = ModelServer(document())
    async with models(tmp_path, server, is_fast=is_fast) as one:
        answer = await asks(one, post(path, {"model": "web"}, field))
        assert answer.status == status
        if status == 403:
            assert answer.json["error"]["type"] == "permission_error"
        assert len(server.asked) == (status == 200)
        await one.settled()


async def test_a_foreign_host(tmp_path: Path, is_fast: bool) -> None:
    """A host name that is not this server's gets 421 in the protocol's shape."""
    server = ModelServer(document())
    async with models(tmp_path, server, is_fast=is_fast) as one:
        request = post(CHAT, {"model": "web"}).replace(b"Host: 127.0.0.1", b"Host: evil.example")
        answer = await asks(one, request)
        assert (answer.status, answer.json["error"]["type"]) == (421, "invalid_request_error")
        await one.settled()


async def test_the_servers_name_of_the_model(tmp_path: Path, is_fast: bool) -> None:
    """The server gets its own name of the model, and the client its own; the length is right."""
    server = ModelServer(lambda asked: document(model=asked.json["model"], x="é"))
    async with models(tmp_path, server, is_fast=is_fast, api=ModelApi("a/very-long name")) as one:
        answer = await asks(one, post(CHAT, {"messages": [], "model": "gpt/small:1"}))
        assert server.asked[0].json["model"] == "a/very-long name"
        assert answer.fields["transfer-encoding"] == "chunked"
        assert "content-length" not in answer.fields
        assert b'"model": "gpt/small:1"' in answer.body
        assert answer.body.endswith(b"0\r\n\r\n")
        await one.settled()


async def test_what_the_server_gets(tmp_path: Path, is_fast: bool) -> None:
    """Its own path, no coding of answers, no cookies, and the client's other fields."""
    server = ModelServer(document())
    fields = [
        "Accept-Encoding: gzip, br",
        "Cookie: a=b",
        "X-Stainless-Lang: python",
        "Connection: x-hop",
        "X-Hop: 1",
        "Expect: 100-continue",
        "X-Request-Id: abc",
    ]
    api = ModelApi(base="/api/v3")
    async with models(tmp_path, server, is_fast=is_fast, api=api) as one:
        answer = await asks(one, post("/v1/embeddings", {"model": "web", "input": "a"}, *fields))
        assert answer.status == 200
        [asked] = server.asked
        assert asked.line == "POST /api/v3/embeddings HTTP/1.1"
        assert asked.fields["accept-encoding"] == "identity"
        assert asked.fields["x-stainless-lang"] == "python"
        assert asked.fields["x-request-id"] == "abc"
        assert not {"cookie", "expect", "x-hop", "transfer-encoding"} & set(asked.fields)
        await one.settled()


async def test_what_the_client_gets(tmp_path: Path, is_fast: bool) -> None:
    """The id of its request, no fields of the connection and no cookies of a server."""
    server = ModelServer(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
        b"Set-Cookie: a=b\r\nKeep-Alive: timeout=5\r\nX-Request-Id: of-the-server\r\n"
        b"X-Ratelimit-Remaining: 3\r\n\r\n{}"
    )
    async with models(tmp_path, server, is_fast=is_fast) as one:
        answer = await asks(one, post(CHAT, {"model": "web"}, "X-Request-Id: mine"))
        assert answer.fields["x-request-id"] == "mine"
        assert answer.fields["x-ratelimit-remaining"] == "3"
        assert answer.fields["content-length"] == "2"
        assert not {"set-cookie", "keep-alive", "x-accel-buffering"} & set(answer.fields)
        await one.settled()


async def test_an_error_of_the_server_is_the_clients(tmp_path: Path, is_fast: bool) -> None:
    """An answer with another status passes as it is."""
    body = b'{"error":{"message":"model served-m has no tools"}}'
    server = ModelServer(
        b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    async with models(tmp_path, server, is_fast=is_fast, api=ModelApi("served-m")) as one:
        answer = await asks(one, post(CHAT, {"model": "web", "stream": True}))
        assert (answer.status, answer.body) == (400, body)
        await one.settled()


async def test_a_server_that_compresses_although_it_must_not(tmp_path: Path, is_fast: bool) -> None:
    """A body with a coding passes whole and unread, with its coding named."""
    coded = bytes(range(256))
    server = ModelServer(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n100\r\n%b\r\n0\r\n\r\n" % coded
    )
    async with models(tmp_path, server, is_fast=is_fast, api=ModelApi("served-m")) as one:
        answer = await asks(one, post(CHAT, {"model": "web", "stream": True}))
        assert (answer.status, answer.fields["content-encoding"]) == (200, "gzip")
        assert answer.body == b"100\r\n%b\r\n0\r\n\r\n" % coded
        await one.settled()


NO_ENDPOINTS = [
    ("POST", "/v1/nope", 404, None),
    ("POST", "/v1/", 404, None),
    ("POST", "/v1", 404, None),
    ("GET", "/v1", 404, None),
    ("GET", "/v1/", 404, None),
    ("GET", "/v1/responses/abc", 404, None),
    ("DELETE", "/v1/responses/abc", 404, None),
    ("POST", "/v1/chat/completions/", 404, None),
    ("POST", "/v1/messages/batches", 404, None),
    ("GET", CHAT, 405, "POST"),
    ("HEAD", CHAT, 405, "POST"),
    ("OPTIONS", CHAT, 405, "POST"),
    ("PUT", MESSAGES, 405, "POST"),
    ("POST", "/v1/models", 405, "GET, HEAD"),
    ("POST", "/v1/models/web", 405, "GET, HEAD"),
    ("DELETE", "/v1/models/web", 405, "GET, HEAD"),
]


@pytest.mark.parametrize(("method", "path", "status", "allow"), NO_ENDPOINTS)
@pytest.mark.parametrize("is_anthropic", [False, True])
async def test_what_is_no_endpoint(
    tmp_path: Path,
    is_fast: bool,
    method: str,
    path: str,
    status: int,
    allow: str | None,
    is_anthropic: bool,
) -> None:
    """Unknown paths are 404, other methods 405 with Allow, in the shape of the client's protocol;
    the connection serves another request."""
    server = ModelServer(document())
    async with models(tmp_path, server, is_fast=is_fast) as one:
        fields = ["anthropic-version: 2023-06-01"] if is_anthropic else []
        answer = await asks(one, head(path, *fields, "Connection: close", method=method))
        assert (answer.status, answer.fields.get("allow")) == (status, allow)
        assert answer.fields["content-type"].startswith("application/json")
        if method == "HEAD":
            assert answer.body == b""
        else:
            by_path = path == MESSAGES
            by_field = is_anthropic and path != CHAT
            assert ("request_id" in answer.json) == (by_path or by_field)
            assert answer.json["error"]["message"]
        assert not server.asked
        await one.settled()


async def test_requests_in_turn_on_one_connection(tmp_path: Path) -> None:
    """Answers and errors before the body's end leave the connection in order, also pipelined."""
    server = ModelServer(lambda asked: document(n=asked.json["n"]))
    async with models(tmp_path, server, is_fast=True) as one:
        wire = await one.connect()
        requests: list[bytes | dict[str, Any]] = [
            {"model": "web", "n": 1},
            b"no json",
            {"model": "none"},
            {"model": "web", "n": 2},
            {"model": "web"[:2]},
            {"n": 1},
            {"model": "web", "n": 3},
        ]
        wire.send(b"".join(post(CHAT, body, closes=False) for body in requests))
        wire.send(head("/v1/models", method="GET"))
        statuses = []
        for _ in requests:
            first, body = await wire.answer()
            statuses.append(parsed(first).status)
            json.loads(body)
        assert statuses == [200, 400, 404, 200, 404, 400, 200]
        assert [asked.json["n"] for asked in server.asked] == [1, 2, 3]
        first, body = await wire.answer()
        assert [one["id"] for one in json.loads(body)["data"]] == ["web", "gpt/small:1"]
        wire.close()
        await one.settled()


async def test_a_model_of_another_process_appears(tmp_path: Path, is_fast: bool) -> None:
    """A model that is deployed later is found, and bodies may be as large as it allows."""
    server = ModelServer(document())
    async with models(tmp_path, server, is_fast=is_fast, api=ModelApi(body_mib=1)) as one:
        large = post(CHAT, {"model": "big", "x": "a" * 2**21})
        assert (await asks(one, large)).status == 413
        catalog = one.gateway.invoker.catalog
        revision = nouns.server_revision("big", api=ModelApi(body_mib=3))
        catalog.put(Deployed(nouns.function("big"), revision))
        answer = await asks(one, post(CHAT, {"model": "web", "x": "a" * 2**21}))
        assert answer.status == 413
        assert "1 MiB" in answer.json["error"]["message"]
        await one.settled()


async def test_what_a_change_makes_outdated_is_not_learned(tmp_path: Path, is_fast: bool) -> None:
    """A request whose body arrives after a change of the functions gets what its head was given
    before; the next ones with this head get what holds now."""
    listed = server_function(
        ExchangeLimits(), PathRules(), Limits(), "", ("https://a.example",), ModelApi()
    )
    async with models(tmp_path, ModelServer(document(ok=1)), is_fast=is_fast) as one:
        request = post(CHAT, {"model": "web"})
        for _ in range(2):
            assert "vary" not in (await asks(one, request)).fields
        wire = await one.connect()
        wire.send(request[:-1])
        await quiet(lambda: 0, 20)
        one.gateway.invoker.catalog.put(listed)
        wire.send(request[-1:])
        assert parsed(await wire.rest()).status == 200
        for _ in range(2):
            assert (await asks(one, request)).fields["vary"] == "Origin"
        wire.close()
        await one.settled()
