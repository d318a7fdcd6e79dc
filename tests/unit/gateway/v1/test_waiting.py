"""Tests of the comments of waiting streams."""

from __future__ import annotations

from gateway.v1.endpoints import Protocol
from gateway.v1.waiting import EACH_S, WaitingStream


def test_a_first_comment_is_followed_by_one_each_10_s() -> None:
    """The first comment is due `after_s` seconds after the request, each further one EACH_S after
    the last."""
    waiting = WaitingStream(Protocol.OPENAI, 100.0, 20.0)

    assert waiting.due(119.9) == b""
    assert waiting.due(120.0) == b": waiting\n\n"
    assert waiting.due(120.0 + EACH_S - 0.1) == b""
    assert waiting.due(120.0 + EACH_S) == b": waiting\n\n"


def test_a_short_wait_is_one_of_all_comments() -> None:
    """A proxy with a limit below EACH_S gets every comment as early as the first one."""
    waiting = WaitingStream(Protocol.OPENAI, 100.0, 2.0)

    assert waiting.due(102.0)
    assert waiting.due(103.9) == b""
    assert waiting.due(104.0)
    waiting.wrote(105.0)
    assert waiting.due(106.9) == b""
    assert waiting.due(107.0)


def test_bytes_of_the_answer_delay_comments() -> None:
    """A connection that is not idle gets no comment; the first one is never earlier than due."""
    waiting = WaitingStream(Protocol.ANTHROPIC, 100.0, 20.0)

    waiting.wrote(101.0)
    assert waiting.due(119.0) == b""
    waiting.wrote(119.0)
    assert waiting.due(128.9) == b""
    assert waiting.due(129.0) == b'event: ping\ndata: {"type":"ping"}\n\n'
