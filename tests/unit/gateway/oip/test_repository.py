"""Tests of the bodies of requests to the model repository."""

from __future__ import annotations

import pytest

from gateway.oip.repository import (
    IndexRequest,
    Settings,
    check_load,
    check_unload,
    read_repository_request,
)
from registry.errors import BadRequest


@pytest.mark.parametrize(
    ("body", "ready"), [(b"", False), (b" {}\n", False), (b'{"ready":true, "more":1}', True)]
)
def test_an_index_may_be_of_ready_models(body: bytes, ready: bool) -> None:
    """Clients send an empty body, too."""
    assert read_repository_request(body, IndexRequest).ready is ready


@pytest.mark.parametrize("body", [b"", b"{}", b'{"parameters": {}}'])
def test_a_load_without_parameters(body: bytes) -> None:
    """A model is loaded as it was deployed."""
    check_load(body)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"parameters": {"config": "{}"}}', "parameters.config: expected none"),
        (b'{"parameters": {"file:1/m.onnx": "AA=="}}', "parameters.file:1/m.onnx: expected none"),
        (b'{"parameters": {"fast": 1}}', "parameters: expected none, got 'fast'"),
    ],
)
def test_a_load_with_other_files_is_refused(body: bytes, text: str) -> None:
    """What would change the answers is never ignored."""
    with pytest.raises(BadRequest, match=text):
        check_load(body)


@pytest.mark.parametrize("value", [b"true", b"false"])
def test_dependents_may_be_unloaded(value: bytes) -> None:
    """There are none."""
    check_unload(b'{"parameters": {"unload_dependents": %b, "other": 1}}' % value)
    check_unload(b"")


def test_dependents_are_a_boolean() -> None:
    """Another value is named."""
    with pytest.raises(BadRequest, match="expected true or false, got 'yes'"):
        check_unload(b'{"parameters": {"unload_dependents": "yes"}}')


@pytest.mark.parametrize(
    "body", [b"[", b"[]", b'"x"', b"\xff", b'{"parameters": 1}', b"[" * 20_000]
)
def test_what_is_no_object_is_refused(body: bytes) -> None:
    """A body that cannot be read is the client's mistake."""
    with pytest.raises(BadRequest, match="the body cannot be read"):
        check_load(body)


def test_settings_are_any_object() -> None:
    """An empty body changes none."""
    assert read_repository_request(b"", Settings) == {}
    assert read_repository_request(b'{"log_info": null}', Settings) == {"log_info": None}
