"""Tests of whole answers as bytes."""

from __future__ import annotations

from gateway.replies import CLOSE, PIECE, Reply, Writer

HEAD = (
    b"HTTP/1.1 404 Not Found\r\nContent-Type: a/b\r\nContent-Length: 2\r\n"
    b"Date: Thu, 01 Jan 1970 00:00:07 GMT\r\nServer: fngate\r\n\r\n"
)


def test_a_small_reply_is_one_piece() -> None:
    """Status line, headers in order, length, date, body."""
    writer = Writer(lambda: 7.9)
    assert writer.pieces(Reply(404, (("Content-Type", "a/b"),), b"no")) == [HEAD + b"no"]


def test_the_date_moves_on() -> None:
    """It is made anew in another second, and not in the same."""
    now = [0.0]
    writer = Writer(lambda: now[0])
    reply = Reply(200, (), b"")
    first = writer.pieces(reply)
    now[0] = 0.99
    assert writer.pieces(reply) == first
    now[0] = 1.0
    assert b"00:00:01 GMT" in bytes(writer.pieces(reply)[0])


def test_a_large_body_is_not_copied() -> None:
    """It is a piece of its own, the same object."""
    body = bytearray(PIECE)
    head, piece = Writer(lambda: 0.0).pieces(Reply(200, (), body))
    assert piece is body
    assert bytes(head).endswith(b"\r\n\r\n")


def test_a_reply_may_end_its_connection() -> None:
    """By its own header."""
    assert Reply(408, (CLOSE,), b"").closes
    assert not Reply(200, (), b"").closes
