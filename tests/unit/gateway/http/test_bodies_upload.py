"""Tests of receiving a body where it stays; over real connections in test_front."""

from __future__ import annotations

from gateway.http.bodies import LARGE_READ, BodyReceiver


def test_a_view_is_filled_and_then_let_go() -> None:
    """In as many pieces as come; nothing is received beyond it."""
    body, ends, counts = bytearray(5), [], []
    upload = BodyReceiver(
        memoryview(body), counts.append, lambda: ends.append("received"), ends.append
    )
    for piece in (b"ab", b"cde"):
        buffer = upload.get_buffer(0)
        assert len(buffer) == 5 - body.rstrip(b"\0").__len__()
        buffer[: len(piece)] = piece
        buffer.release()
        upload.buffer_updated(len(piece))

    # The last piece needs no counting: the whole body is a call's from then on.
    assert (bytes(body), ends, counts) == (b"abcde", ["received"], [2])
    assert len(upload.get_buffer(0)) == 0


def test_a_client_that_leaves_before_is_told_of() -> None:
    """With the error, and the view is let go."""
    ends: list[object] = []
    upload = BodyReceiver(
        memoryview(bytearray(5)), ends.append, lambda: ends.append(0), ends.append
    )
    error = ConnectionResetError()
    upload.connection_lost(error)

    assert ends == [error]
    assert len(upload.get_buffer(0)) == 0


def test_large_reads_are_counted_ahead() -> None:
    """Never less than has come, never more than the body; small reads are counted as they come."""
    size = 40 * LARGE_READ
    body, counts = bytearray(size), []
    upload = BodyReceiver(memoryview(body), counts.append, lambda: None, lambda _error: None)
    come = 0
    for read in (1, 2, *[LARGE_READ] * 36, LARGE_READ, LARGE_READ):
        upload.buffer_updated(read)
        come += read
        assert come <= sum(counts) <= size

    assert counts[:2] == [1, 2]
    assert len(counts) < 12
