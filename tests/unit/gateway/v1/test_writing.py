"""What the gateway writes into a request."""

from __future__ import annotations

import json

import pytest

from gateway.v1.endpoints import ENDPOINTS
from gateway.v1.scanning import scan
from gateway.v1.writing import JOINED_MAX, UpstreamBody, upstream_body
from registry.model.servers import ModelApi
from tests.support.scans import run

CHAT = ENDPOINTS[b"/chat/completions"]


def written(body: bytes, api: ModelApi, path: bytes = b"/chat/completions") -> UpstreamBody:
    """Return the body for the server."""
    return upstream_body(run(scan(body)), ENDPOINTS[path], api)


def test_values_stay_as_they_are() -> None:
    """Also white space in them, and numbers that JSON could write otherwise; the order, too."""
    body = b'{ "messages":[{"model": "a"}] , "model" :"a", "x": 1.50e0}'
    found = written(body, ModelApi(served_model='org/"b"'))
    assert found.pieces == (b'{"messages":[{"model": "a"}],"model":"org/\\"b\\"","x":1.50e0}',)
    assert not found.asks_usage


def test_a_repeated_member_is_one() -> None:
    """Also where nothing is to be changed: the server reads the model that was checked."""
    body = b'{"model": "b", "x": 1, "mod\\u0065l": "a"}'
    assert written(body, ModelApi()).pieces == (b'{"model":"a","x":1}',)


def test_a_large_value_is_not_copied() -> None:
    """It is a view of the body. What stands around it is together."""
    large = b'"%b"' % (b"x" * JOINED_MAX)
    body = b'{"a": 1, "b": %b, "c": 2, "model": "a", "d": %b}' % (large, large)
    first, one, between, two, last = written(body, ModelApi()).pieces
    assert (first, between, last) == (b'{"a":1,"b":', b',"c":2,"model":"a","d":', b"}")
    for piece in (one, two):
        assert isinstance(piece, memoryview)
        assert piece == large


def test_a_large_value_of_an_odd_body_is_not_copied_either() -> None:
    """One that only lenient parsers read."""
    large = b'"%b\\ud83d"' % (b"x" * JOINED_MAX)
    body = b'{"model": "a", "b": %b, "\\ude00": NaN}' % large
    first, one, last = written(body, ModelApi()).pieces
    assert (first, bytes(one), last) == (b'{"model":"a","b":', large, b',"\\ude00":NaN}')
    assert isinstance(one, memoryview)


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
    found = written(body, ModelApi(served_model="longer name"))
    [piece] = found.pieces
    document = json.loads(bytes(piece))
    assert document.pop("stream_options") == expected
    assert document == {"model": "longer name", "stream": True, "b": 2}
    assert found.asks_usage is asks


@pytest.mark.parametrize(
    ("path", "body", "api"),
    [
        (b"/chat/completions", b'{"model":"a","stream":false}', ModelApi()),
        (b"/chat/completions", b'{"model":"a"}', ModelApi()),
        (b"/chat/completions", b'{"model":"a","stream":true}', ModelApi(usage="as_sent")),
        (b"/responses", b'{"model":"a","stream":true}', ModelApi()),
        (b"/messages", b'{"model":"a","stream":true}', ModelApi()),
    ],
)
def test_no_other_request_gets_an_option(path: bytes, body: bytes, api: ModelApi) -> None:
    """Servers refuse options that they do not know, so only streams of chunks get it."""
    assert written(body, api, path) == UpstreamBody((body,), asks_usage=False)
