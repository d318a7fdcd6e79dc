from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from admin.client.sse import CONTENT_TYPE, Event, open_stream
from admin.client.transport import ApiError, Transport, Unreachable

HEAD = "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nTransfer-Encoding: chunked\r\n\r\n"
SILENT_S = 0.5
END_S = 10.0


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@contextmanager
def server(*parts: bytes, kind: str = CONTENT_TYPE, hangs: bool = False) -> Iterator[list[bytes]]:
    """Serves one connection of the given chunks, and keeps what it was asked; the first element
    is its URL. One that hangs keeps the connection until the block ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()
    asked = [f"http://127.0.0.1:{listener.getsockname()[1]}".encode()]

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            asked.append(connection.recv(65536))
            connection.sendall(HEAD.format(kind).encode() + b"".join(map(chunk, parts)))
            if hangs:
                over.wait(END_S)

    thread = threading.Thread(target=serve)
    with closing(listener):
        thread.start()
        try:
            yield asked
        finally:
            over.set()
            thread.join(END_S)


@contextmanager
def events_of(
    *parts: bytes, hangs: bool = False, kind: str = CONTENT_TYPE
) -> Iterator[Iterator[Event]]:
    with (
        server(*parts, kind=kind, hangs=hangs) as asked,
        open_stream(Transport(asked[0].decode(), None), "/x", silent_s=SILENT_S) as events,
    ):
        yield events


def test_events_come_as_they_are_sent() -> None:
    """Chunks may end anywhere; the request says what it wants, and from where."""
    with server(b"id: 1\ndata: a\n", b"\nid: 2\nda", b"ta: b\n\n", b"") as asked:
        transport = Transport(asked[0].decode(), "k1")
        with open_stream(transport, "/x", "0") as events:
            assert list(events) == [Event("1", "message", "a"), Event("2", "message", "b")]

    head = asked[1].decode().lower()
    assert "get /x http/1.1" in head
    assert {"accept: text/event-stream", "last-event-id: 0", "authorization: bearer k1"} <= set(
        head.split("\r\n")
    )


def test_an_event_is_there_before_the_next_one() -> None:
    """Nothing waits for a buffer to be full."""
    with events_of(b"data: a\n\n", hangs=True) as events:
        assert next(events).data == "a"


def test_a_stream_that_breaks_off_is_told_from_one_that_ends() -> None:
    """Without the last chunk the server is gone."""
    with events_of(b"data: a\n\n") as events:
        next(events)
        with pytest.raises(Unreachable):
            next(events)


def test_silence_is_an_end() -> None:
    """A server that says nothing, not even that it is there, is given up."""
    with events_of(hangs=True) as events, pytest.raises(Unreachable, match="timed out"):
        next(events)


def test_whoever_sends_no_events_is_refused() -> None:
    """An older server answers with JSON: that is said, not read as no event."""
    wanted = "expected text/event-stream, got application/json"
    with (
        pytest.raises(ApiError, match=wanted),
        events_of(b"{}", b"", kind="application/json"),
    ):
        pass
