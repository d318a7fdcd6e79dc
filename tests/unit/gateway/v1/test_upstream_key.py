"""Tests of the key that a function's server gets."""

from __future__ import annotations

import pytest

from gateway.v1.endpoints import Protocol
from gateway.v1.upstream_key import checked_key, with_key
from registry.errors import FunctionFailing
from registry.upstream_keys import UpstreamKey

HEAD = b"POST /v1/messages HTTP/1.1\r\nHost: h\r\n\r\n"
KEY = UpstreamKey("vllm", "sk-1")


@pytest.mark.parametrize(
    ("protocol", "line"),
    [
        (Protocol.OPENAI, b"Authorization: Bearer sk-1"),
        (Protocol.ANTHROPIC, b"X-Api-Key: sk-1"),
    ],
)
def test_the_key_is_the_heads_last_field(protocol: Protocol, line: bytes) -> None:
    """Each protocol has a field of its own for it."""
    assert with_key(HEAD, protocol, KEY) == HEAD[:-2] + line + b"\r\n\r\n"
    assert with_key(HEAD, protocol, None) == HEAD


def test_a_key_that_is_missing_or_broken_is_told() -> None:
    """The text has the secret and the problem."""
    assert checked_key("qwen", "vllm", KEY) is KEY
    with pytest.raises(FunctionFailing, match=r"qwen has no key .*: no secret vllm"):
        checked_key("qwen", "vllm", None)
    with pytest.raises(FunctionFailing, match=r"qwen has no key .*: it is damaged"):
        checked_key("qwen", "vllm", UpstreamKey("vllm", problem="it is damaged"))
