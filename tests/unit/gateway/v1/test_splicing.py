"""What the gateway writes into a request."""

from __future__ import annotations

import json

import pytest

from gateway.v1.endpoints import ENDPOINTS
from gateway.v1.scanning import run, scan
from gateway.v1.splicing import UpstreamBody, upstream_body
from registry.model import ModelApi

CHAT = ENDPOINTS[b"/chat/completions"]


def spliced(body: bytes, api: ModelApi, path: bytes = b"/chat/completions") -> UpstreamBody:
    """Return the body for the server."""
    return upstream_body(body, run(scan(body)), ENDPOINTS[path], api)


def test_nothing_to_change_is_the_same_object() -> None:
    """A body that the server can have as it is is not copied."""
    body = b'{"model": "a", "x": 1.50}'
    assert spliced(body, ModelApi()).body is body
    assert spliced(body, ModelApi(served_model="a")).body is body


def test_only_the_models_name_changes() -> None:
    """Every other byte stays, also white space and numbers that JSON could write otherwise."""
    body = b'{ "messages":[{"model": "a"}] , "model" :"a", "x": 1.50e0}'
    found = spliced(body, ModelApi(served_model='org/"b"'))
    assert found.body == b'{ "messages":[{"model": "a"}] , "model" :"org/\\"b\\"", "x": 1.50e0}'
    assert not found.asks_usage


@pytest.mark.parametrize(
    ("options", "expected", "asks"),
    [
        (None, {"include_usage": True}, True),
        ("null", {"include_usage": True}, True),
        ("{}", {"include_usage": True}, True),
        ('{"include_usage": false, "x": 1}', {"include_usage": True, "x": 1}, True),
        ('{"include_usage": null}', {"include_usage": True}, True),
        ('{"include_usage": true}', {"include_usage": True}, False),
    ],
)
def test_the_usage_of_a_stream_is_asked_for(
    options: str | None, expected: dict[str, object], *, asks: bool
) -> None:
    """A stream tells its usage to the gateway; whether the client has asked stays known."""
    given = "" if options is None else f', "stream_options": {options}'
    body = f'{{"model": "a", "stream": true{given}, "b": 2}}'.encode()
    found = spliced(body, ModelApi(served_model="longer name"))
    document = json.loads(found.body)
    assert document.pop("stream_options") == expected
    assert document == {"model": "longer name", "stream": True, "b": 2}
    assert found.asks_usage is asks


@pytest.mark.parametrize(
    ("path", "body", "api"),
    [
        (b"/chat/completions", b'{"model": "a", "stream": false}', ModelApi()),
        (b"/chat/completions", b'{"model": "a"}', ModelApi()),
        (b"/chat/completions", b'{"model": "a", "stream": true}', ModelApi(usage="as_sent")),
        (b"/responses", b'{"model": "a", "stream": true}', ModelApi()),
        (b"/messages", b'{"model": "a", "stream": true}', ModelApi()),
    ],
)
def test_no_other_request_gets_an_option(path: bytes, body: bytes, api: ModelApi) -> None:
    """Servers refuse options that they do not know, so only streams of chunks get it."""
    assert spliced(body, api, path) == UpstreamBody(body, asks_usage=False)
