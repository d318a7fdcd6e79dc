"""`GET /v1/models`: who sees which models, in which shape; nothing wakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from registry.catalog import Deployed
from registry.model.servers import ModelApi
from tests.support import nouns
from tests.support.modelled import ModelServer, asks, document, head, models
from tests.support.proxied import KEY, Gate

KEYS = {"fn_all": ("invoke",), "fn_web": ("invoke:web",), "fn_none": ("invoke:digits",)}
ANTHROPIC = "anthropic-version: 2023-06-01"


def get(path: str, *fields: str, method: str = "GET") -> bytes:
    """Return a request."""
    return head(path, *fields, "Connection: close", method=method)


def add_model(one: Gate) -> None:
    """Deploy another model, "more"."""
    revision = nouns.server_revision("more", api=ModelApi())
    function = nouns.function("more", created_s=86_400.0)
    one.gateway.invoker.catalog.put(Deployed(function, revision))


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("fn_all", ["more", "web", "gpt/small:1"]),
        ("fn_web", ["web", "gpt/small:1"]),
        ("fn_none", []),
    ],
)
async def test_the_list_of_models(
    tmp_path: Path, is_fast: bool, key: str, names: list[str]
) -> None:
    """A key sees what it may invoke, cold models and aliases too."""
    more: dict[str, Any] = {"is_fast": is_fast, "keys": KEYS, "is_cold": True}
    async with models(tmp_path, ModelServer(document()), **more) as one:
        add_model(one)
        answer = await asks(one, get("/v1/models", f"Authorization: Bearer {key}"))
        assert answer.status == 200
        assert answer.fields["x-request-id"]
        assert answer.json["object"] == "list"
        assert [each["id"] for each in answer.json["data"]] == names
        assert all(set(each) == SHAPE for each in answer.json["data"])

        answer = await asks(one, get("/v1/models?limit=1000", f"x-api-key: {key}", ANTHROPIC))
        assert [each["id"] for each in answer.json["data"]] == names
        ends = (answer.json["first_id"], answer.json["last_id"])
        assert ends == ((names[0], names[-1]) if names else (None, None))
        assert not answer.json["has_more"]
        assert not one.delivery.loads().get(KEY)
        await one.settled()


SHAPE = {"id", "object", "created", "owned_by"}


@pytest.mark.parametrize(
    ("path", "id"),
    [
        ("web", "web"),
        ("web@1", "web@1"),
        ("web%401", "web@1"),
        ("gpt/small:1", "gpt/small:1"),
        ("gpt%2Fsmall%3A1", "gpt/small:1"),
        ("more", "more"),
    ],
)
async def test_one_model(tmp_path: Path, is_fast: bool, path: str, id: str) -> None:
    """Its names may have slashes, as they are or encoded."""
    async with models(tmp_path, ModelServer(document()), is_fast=is_fast, is_cold=True) as one:
        add_model(one)
        answer = await asks(one, get(f"/v1/models/{path}"))
        assert (answer.status, answer.json["id"]) == (200, id)
        assert answer.json["object"] == "model"
        answer = await asks(one, get(f"/v1/models/{path}", ANTHROPIC))
        assert (answer.json["type"], answer.json["id"]) == ("model", id)
        assert answer.json["created_at"].endswith("Z")
        found = await asks(one, get(f"/v1/models/{path}", method="HEAD"))
        assert (found.status, found.body) == (200, b"")
        assert not one.delivery.loads().get(KEY)
        await one.settled()


@pytest.mark.parametrize("path", ["none", "digits", "web@9", "gpt%252Fsmall", "%FF", ""])
@pytest.mark.parametrize("fields", [[], [ANTHROPIC]])
async def test_no_model(tmp_path: Path, is_fast: bool, path: str, fields: list[str]) -> None:
    """Unknown names are 404 in the protocol's shape, as those of functions without [openai]."""
    async with models(tmp_path, ModelServer(document()), is_fast=is_fast) as one:
        answer = await asks(one, get(f"/v1/models/{path}", *fields))
        kind = "not_found_error" if fields else "invalid_request_error"
        assert (answer.status, answer.json["error"]["type"]) == (404, kind)
        await one.settled()


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([], 401),
        (["Authorization: Bearer fn_wrong"], 401),
        (["x-api-key: fn_web"], 401),
        (["x-api-key: fn_web", ANTHROPIC], 200),
        (["x-api-key: fn_web", "Authorization: Bearer fn_web", ANTHROPIC], 200),
        (["x-api-key: fn_web", "Authorization: Bearer fn_all", ANTHROPIC], 401),
        (["Authorization: Bearer fn_web", "Authorization: Bearer fn_all"], 401),
        (["Authorization: Bearer fn_none"], 404),
        (["Fn-Key: fn_web"], 200),
        (["Fn-Key: fn_web", "Origin: http://evil.example"], 403),
    ],
)
async def test_keys(tmp_path: Path, is_fast: bool, fields: list[str], status: int) -> None:
    """One key counts; a model that it may not invoke does not exist."""
    async with models(tmp_path, ModelServer(document()), is_fast=is_fast, keys=KEYS) as one:
        answer = await asks(one, get("/v1/models/web", *fields))
        assert answer.status == status
        assert answer.fields["content-type"].startswith("application/json")
        await one.settled()


async def test_a_body_where_there_is_none(tmp_path: Path, is_fast: bool) -> None:
    """A client that would send one does not keep the answer waiting."""
    async with models(tmp_path, ModelServer(document()), is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(head("/v1/models", "Content-Length: 9", "Expect: 100-continue", method="GET"))
        first, body = await wire.answer()
        assert first.startswith(b"HTTP/1.1 200 ")
        assert b"gpt/small:1" in body
        wire.close()
        await one.settled()
