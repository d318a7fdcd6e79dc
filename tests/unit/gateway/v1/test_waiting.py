"""When a waiting stream gets a comment."""

from __future__ import annotations

import pytest

from gateway.v1.endpoints import Protocol
from gateway.v1.waiting import EACH_S, WaitingStream

OPENAI, ANTHROPIC = b": waiting\n\n", b'event: ping\ndata: {"type":"ping"}\n\n'


@pytest.mark.parametrize(
    ("protocol", "comment"), [(Protocol.OPENAI, OPENAI), (Protocol.ANTHROPIC, ANTHROPIC)]
)
def test_comments_of_a_stream_that_waits(protocol: Protocol, comment: bytes) -> None:
    """The first one after `after_s`, then one each 10 s after the one before."""
    stream = WaitingStream(protocol, 100.0, 20.0)
    assert [stream.due(at) for at in (100.0, 119.9)] == [b"", b""]
    assert [stream.due(at) for at in (121.0, 121.1, 130.9)] == [comment, b"", b""]
    assert [stream.due(at) for at in (131.0, 140.9, 500.0, 500.1)] == [comment, b"", comment, b""]


def test_what_is_written_postpones_comments() -> None:
    """A connection that is not idle needs none; the first one is not earlier for it."""
    stream = WaitingStream(Protocol.OPENAI, 100.0, 20.0)
    stream.wrote(101.0)
    assert not stream.due(119.9)
    stream.wrote(119.9)
    assert not stream.due(119.8 + EACH_S)
    assert stream.due(120.0 + EACH_S)


def test_a_short_wait_is_one_of_all_comments() -> None:
    """A proxy with a limit below EACH_S gets every comment as early as the first one."""
    waiting = WaitingStream(Protocol.OPENAI, 100.0, 2.0)

    assert waiting.due(102.0)
    assert waiting.due(103.9) == b""
    assert waiting.due(104.0)
    waiting.wrote(105.0)
    assert waiting.due(106.9) == b""
    assert waiting.due(107.0)


@pytest.mark.parametrize("keeps", [True, False])
def test_the_head_tells_whether_the_connection_stays(keeps: bool) -> None:
    """A client must not reuse a connection that ends with the answer."""
    head = WaitingStream.head([("X-Request-Id", "abc")], keeps=keeps)
    expected = b"keep-alive" if keeps else b"close"
    assert head.endswith(b"\r\nConnection: %b\r\n\r\n" % expected)
    assert b"\r\nX-Request-Id: abc\r\n" in head
