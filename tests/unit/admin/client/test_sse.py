from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from admin.client.sse import (
    CONTENT_TYPE,
    Disconnected,
    Event,
    EventTooLong,
    Parser,
    Position,
    Retry,
    open_stream,
    resumed,
)
from admin.client.transport import ApiError, Transport, Unreachable


def test_an_event_has_id_type_and_data() -> None:
    """An event has its fields in any order, with or without a space after the colon."""
    parser = Parser()

    events = parser.feed(b"data: a\nid:7\nevent: lines\ndata:  b\n\n")

    assert events == [Event("7", "lines", "a\n b")]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_any_line_end_will_do(end: bytes) -> None:
    """LF, CR and CRLF end a line, also when split between two chunks."""
    stream = end.join([b"event: x", b"data: 1", b"", b"data: 2", b"", b""])
    parser = Parser()

    events = [event for byte in stream for event in parser.feed(bytes([byte]))]

    assert events == [Event("", "x", "1"), Event("", "message", "2")]


def test_comments_and_strange_fields_mean_nothing() -> None:
    """Comments and unknown fields, `retry` among them, are ignored."""
    parser = Parser()

    assert parser.feed(b": still here\nretry: 10\nfoo\ndata\n\n") == [Event("", "message", "")]


def test_an_event_without_data_is_none() -> None:
    """An empty line without data gives no event; its id counts and its type is dropped."""
    parser = Parser()

    assert parser.feed(b"id: 3\nevent: x\n\n") == []
    assert parser.last_id == "3"
    assert parser.feed(b"data: y\n\n") == [Event("3", "message", "y")]


def test_an_id_stays_until_another_comes() -> None:
    """An id holds until the next one; an empty id clears it, one with NUL is ignored."""
    parser = Parser("5")

    events = parser.feed(b"data: a\n\nid: 6\ndata: b\n\nid: 7\0\ndata: c\n\nid\ndata: d\n\n")

    assert [event.id for event in events] == ["5", "6", "6", ""]


def test_an_event_that_was_cut_off_does_not_count() -> None:
    """An event without its empty line is not emitted, and its id does not count."""
    parser = Parser("1")

    assert parser.feed(b"id: 2\ndata: half") == []
    assert parser.last_id == "1"


def test_a_byte_order_mark_is_skipped_once() -> None:
    """A byte order mark is skipped before the first line only."""
    parser = Parser()

    events = parser.feed(b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\ndata: c\n\n")

    assert [event.data for event in events] == ["a", "c"]


@pytest.mark.parametrize("flood", [b"data: " + b"x" * 100, b"data: 12345678\n" * 12])
def test_an_endless_event_is_refused(flood: bytes) -> None:
    """A line, or an event of many lines, over the limit is refused."""
    parser = Parser(event_max=64)

    with pytest.raises(EventTooLong, match="at most 64 bytes"):
        parser.feed(flood)


HEAD = "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nTransfer-Encoding: chunked\r\n\r\n"
SILENT_S = 0.5
END_S = 10.0


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@contextmanager
def server(*parts: bytes, kind: str = CONTENT_TYPE, hangs: bool = False) -> Iterator[list[bytes]]:
    """Serve one connection with the given chunks; the first element is its URL, the others are the
    requests received. With `hangs` the connection stays open until the block ends."""
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
    """Events are parsed across chunks; the request has Accept and Last-Event-ID."""
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
    """An event is yielded before the next chunk arrives."""
    with events_of(b"data: a\n\n", hangs=True) as events:
        assert next(events).data == "a"


def test_a_stream_that_breaks_off_is_told_from_one_that_ends() -> None:
    """A stream without its last chunk is a lost connection, not an end."""
    with events_of(b"data: a\n\n") as events:
        next(events)
        with pytest.raises(Unreachable):
            next(events)


def test_silence_is_an_end() -> None:
    """A server that sends nothing, not even comments, is given up."""
    with events_of(hangs=True) as events, pytest.raises(Unreachable, match="timed out"):
        next(events)


def test_an_answer_without_events_is_refused() -> None:
    """An answer that is not an event stream is refused as coming from an older server."""
    wanted = "expected text/event-stream, got application/json"
    with (
        pytest.raises(ApiError, match=wanted),
        events_of(b"{}", b"", kind="application/json"),
    ):
        pass


Turn = list[Event] | Exception


class Server:
    """Server whose connections follow a script: events, or an error."""

    def __init__(self, *turns: Turn) -> None:
        self._turns = iter(turns)
        self.asked: list[str] = []
        self.told: list[str] = []
        self.now_s = 0.0

    @contextmanager
    def connect(self, last_id: str) -> Iterator[Iterator[Event]]:
        self.asked.append(last_id)
        turn = next(self._turns)
        if isinstance(turn, Exception):
            raise turn
        yield iter(turn)

    def pause(self, seconds: float) -> None:
        self.now_s += seconds

    def read(self, patience_s: float = 10.0) -> Iterator[Event]:
        def back() -> None:
            self.told.append("back")

        retry = Retry(
            (PAUSE_S,),
            patience_s,
            on_lost=self.told.append,
            on_back=back,
            clock=lambda: self.now_s,
        )
        for item in resumed(self.connect, retry, Position(), self.pause):
            if not isinstance(item, Disconnected):
                yield item


PAUSE_S = 0.5
ONE, TWO = Event("1", "lines", "a"), Event("2", "lines", "b")
GONE = ApiError(404, {"title": "There is no such function"})
FULL = ApiError(429, {"title": "Too many streams"})
BUSY = ApiError(503, {"title": "The server is shutting down"})


def test_a_stream_goes_on_after_its_last_event() -> None:
    """A stream resumes after its last event; the interruption and the return are reported once
    each."""
    server = Server([ONE], Unreachable("refused"), BUSY, FULL, [TWO], GONE)

    with pytest.raises(ApiError, match="no such function"):
        for _ in server.read():
            pass

    assert server.asked == ["", "1", "1", "1", "1", "2"]
    assert server.told == ["refused", "back"]


def test_every_event_is_given() -> None:
    """Events of all connections arrive in order."""
    server = Server([ONE], [TWO])

    assert list(itertools.islice(server.read(), 2)) == [ONE, TWO]
    assert server.told == []


def test_a_server_that_never_answered_is_no_absence() -> None:
    """A first connection that fails is an error at once."""
    server = Server(Unreachable("refused"))

    with pytest.raises(Unreachable, match="refused"):
        next(server.read())


def test_patience_ends() -> None:
    """A server that stays unreachable is given up after the patience."""
    patience_s = 3 * PAUSE_S
    server = Server([ONE], *[Unreachable("refused")] * 9)

    with pytest.raises(Unreachable):
        for _ in server.read(patience_s):
            pass

    assert server.now_s == pytest.approx(PAUSE_S + patience_s)
