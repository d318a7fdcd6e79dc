from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from admin.cli.live.events import (
    KEPT_MAX,
    EventThread,
    ServerEvent,
    SnapshotPosition,
    StreamItem,
    follow,
)
from admin.client.sse import Connect, Disconnected, Event
from admin.client.transport import ApiError, Unreachable

AWAY = Unreachable("nobody there")
REFUSED = ApiError(401, {"title": "A key is needed", "code": "no_key"})
BUSY = ApiError(503, {"title": "Shutting down"})


def tell(id: str, kind: str, data: str = "{}") -> Event:
    """Return an event of boot "b"."""
    return Event(f"b-{id}" if id else "", kind, data)


class Line:
    """Scripted connections: each yields its events, then fails or, at "end", ends."""

    def __init__(self, *turns: list[Event | Exception]) -> None:
        self.turns = [*turns]
        self.asked: list[str] = []
        self.pauses: list[float] = []

    @contextmanager
    def connect(self, last_id: str) -> Iterator[Iterator[Event]]:
        """Play the next scripted connection."""
        self.asked.append(last_id)
        turn = self.turns.pop(0) if self.turns else [AWAY]
        if isinstance(turn[0], Exception):
            raise turn[0]
        yield self._events(turn)

    def _events(self, turn: list[Event | Exception]) -> Iterator[Event]:
        for each in turn:
            if isinstance(each, Exception):
                raise each
            yield each

    def take(self, count: int) -> list[StreamItem]:
        """Take this many events."""
        connect: Connect = self.connect
        news = follow(connect, self.pauses.append)
        return [next(news) for _ in range(count)]


def test_events_are_told_as_they_come() -> None:
    """Events arrive in order; one that is not a JSON object is skipped."""
    odd = [tell("2", "beat", "[]"), tell("3", "beat", "{")]
    line = Line([tell("1", "reset"), *odd, tell("4", "ready", '{"a": 1}')])

    assert line.take(3) == [
        ServerEvent("reset", {}),
        ServerEvent("ready", {"a": 1}),
        Disconnected("the server ended the events", 1.0),
    ]


def test_after_a_break_it_goes_on_from_the_last_event() -> None:
    """A new connection resumes after the last event id; events without an id do not change it."""
    line = Line(
        [tell("1", "reset"), tell("2", "ready"), tell("3", "decision"), tell("3", "beat"), AWAY],
        [tell("4", "decision")],
    )

    told = line.take(6)

    assert told[4] == Disconnected("nobody there", 1.0)
    assert told[5] == ServerEvent("decision", {})
    assert line.asked == ["", "b-3"]


def test_half_a_snapshot_is_not_resumed() -> None:
    """A break within a snapshot restarts it from the beginning."""
    line = Line([tell("1", "reset"), tell("2", "functions"), AWAY], [tell("3", "reset")])

    line.take(4)

    assert line.asked == ["", ""]


def test_events_before_a_break_are_not_repeated() -> None:
    """Events received before a break are not repeated; another boot's ids start anew."""
    line = Line(
        [tell("1", "reset"), tell("9", "ready"), AWAY],
        [tell("8", "decision"), tell("10", "decision"), Event("c-1", "decision", "{}")],
    )

    told = line.take(5)

    assert told[3:] == [ServerEvent("decision", {}), ServerEvent("decision", {})]


def test_pauses_grow_to_a_bound_and_start_anew() -> None:
    """Pauses between connections grow up to a bound; an event resets them."""
    line = Line(
        [tell("1", "reset"), AWAY],
        *([[AWAY]] * 6),
        [tell("2", "reset"), BUSY],
    )

    told = line.take(10)

    assert line.pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
    assert told[-1] == Disconnected("Shutting down", 1.0)


@pytest.mark.parametrize("error", [AWAY, REFUSED, BUSY])
def test_a_first_connection_that_fails_is_an_error(error: Exception) -> None:
    """A first connection that fails is an error at once: a wrong address or key."""
    with pytest.raises(type(error)):
        Line([error]).take(1)


def test_a_refusal_that_will_not_pass_ends_it() -> None:
    """A refusal that retries cannot mend ends the stream, like that of a revoked key."""
    with pytest.raises(ApiError):
        Line([tell("1", "reset"), AWAY], [REFUSED]).take(3)


def test_foreign_ids_are_only_compared() -> None:
    """Ids without a number have no order: every event is new."""
    position = SnapshotPosition()

    taken = [position.accept(Event(id, "decision", "{}")) for id in ("x", "a-b", "x", "")]

    assert taken == [True] * 4
    assert position.id == "x"


UNTIL_S = 60.0


def test_news_are_taken_in_order() -> None:
    """`take` returns waiting events at once, in order, and can wait for the first."""
    go_on, ended = threading.Event(), threading.Event()

    @contextmanager
    def connect(_last_id: str) -> Iterator[Iterator[Event]]:
        def events() -> Iterator[Event]:
            yield Event("b-1", "reset", "{}")
            go_on.wait(UNTIL_S)
            yield Event("b-2", "ready", "{}")
            ended.wait(UNTIL_S)

        yield events()

    event_thread = EventThread(connect)
    first = list(event_thread.take(UNTIL_S))
    nothing = list(event_thread.take())
    go_on.set()
    second = list(event_thread.take(UNTIL_S))
    event_thread.close()
    ended.set()

    assert (first, nothing, second) == ([ServerEvent("reset", {})], [], [ServerEvent("ready", {})])
    event_thread.join(UNTIL_S)


def test_the_error_that_ends_the_stream_is_raised() -> None:
    """An error that ends the stream is raised to the reader, not lost in the thread."""

    @contextmanager
    def connect(_last_id: str) -> Iterator[Iterator[Event]]:
        raise Unreachable("nobody there")
        yield

    event_thread = EventThread(connect)

    with pytest.raises(Unreachable, match="nobody there"):
        list(event_thread.take(UNTIL_S))
    event_thread.close()
    event_thread.join(UNTIL_S)


def test_a_full_queue_stops_the_reading() -> None:
    """A full queue stops the reading from the network."""
    given = 0
    full = threading.Event()

    @contextmanager
    def connect(_last_id: str) -> Iterator[Iterator[Event]]:
        def events() -> Iterator[Event]:
            nonlocal given
            while True:
                given += 1
                if given > KEPT_MAX:
                    full.set()
                yield Event("", "beat", "{}")

        yield events()

    event_thread = EventThread(connect)
    full.wait(UNTIL_S)
    event_thread.close()
    event_thread.join(UNTIL_S)

    assert given == KEPT_MAX + 1
    assert len(list(event_thread.take())) == KEPT_MAX
