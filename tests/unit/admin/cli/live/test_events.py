from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from admin.cli.live.events import (
    ITEMS_MAX,
    KEPT_MAX,
    EventThread,
    Ignored,
    follow,
    read_event,
)
from admin.client.sse import Connect, Disconnected, Event
from admin.client.transport import ApiError, Unreachable
from admin.documents.events import DecisionEvent, FunctionsEvent, ReadyEvent
from tests.support.admin_documents import made
from tests.support.event_server import function_row
from tests.support.event_server import line as row

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

    def take(self, count: int) -> list[Event | Ignored | Disconnected]:
        """Take this many events; those of type "odd" are ignored."""
        connect: Connect = self.connect
        news = follow(connect, self.pauses.append, readable)
        return [next(news) for _ in range(count)]


def readable(event: Event) -> list[Event | Ignored]:
    """Return the event, unless its type is "odd"."""
    return [Ignored("odd", "") if event.type == "odd" else event]


def test_events_are_told_as_they_come() -> None:
    """Events arrive in order, and a stream that ends is a lost connection."""
    events = [tell("1", "reset"), tell("2", "ready")]

    assert Line([*events]).take(3) == [
        *events,
        Disconnected("the server ended the events", 1.0),
    ]


def test_an_event_is_its_data() -> None:
    """An event is the Struct of its kind, without fields that this release does not know."""
    decision = made(DecisionEvent, function="a", at_s=1.0, text="wakes")
    data = json.dumps({**msgspec.to_builtins(decision), "later": [1]})

    assert list(read_event(tell("1", "decision", data))) == [decision]
    assert list(read_event(tell("1", "ready", ""))) == [ReadyEvent()]


@pytest.mark.parametrize(
    ("kind", "data", "why"),
    [
        ("weather", "{}", "this fnctl does not know such events"),
        ("ready", "[]", "Expected `object`, got `array`"),
        ("ready", "{", "Input data was truncated"),
        ("ready", '{"a":' + "[" * 100_000, "maximum recursion depth exceeded"),
        ("decision", '{"at_s": "x"}', "Expected `float`, got `str` - at `$.at_s`"),
        ("functions", "{}", "Object missing required field `items`"),
        ("functions", '{"items": [3]}', "Expected `object`, got `int` - at `$.items[]`"),
        ("functions", json.dumps({"items": [3] * (ITEMS_MAX + 1)}), "Expected `object`, got `int`"),
    ],
)
def test_what_cannot_be_read_has_a_reason(kind: str, data: str, why: str) -> None:
    """Events of a kind or with data that is not known are ignored, with the reason; so is a list
    that is longer than any server sends and has such items."""
    [found] = read_event(tell("1", kind, data))

    assert isinstance(found, Ignored)
    assert found.kind == kind
    assert found.why.startswith(why)


def test_the_other_items_of_a_list_are_read() -> None:
    """Of a list with an item that cannot be read, the others are read."""
    items = [row("a"), {**row("b"), "held": "many"}, row("c")]

    found = list(read_event(tell("1", "functions", json.dumps({"items": items}))))

    assert found == [
        FunctionsEvent([function_row("a")]),
        Ignored("functions", "Expected `int`, got `str` - at `$.items[].held`"),
        FunctionsEvent([function_row("c")]),
    ]


def test_after_a_break_it_goes_on_from_the_last_event() -> None:
    """A new connection resumes after the last event id; events without an id do not change it."""
    line = Line(
        [tell("1", "reset"), tell("2", "ready"), tell("3", "decision"), tell("3", "beat"), AWAY],
        [tell("4", "decision")],
    )

    told = line.take(6)

    assert told[4] == Disconnected("nobody there", 1.0)
    assert told[5] == tell("4", "decision")
    assert line.asked == ["", "b-3"]


def test_half_a_snapshot_is_not_resumed() -> None:
    """A break within a snapshot restarts it from the beginning."""
    line = Line([tell("1", "reset"), tell("2", "functions"), AWAY], [tell("3", "reset")])

    line.take(4)

    assert line.asked == ["", ""]


def test_pauses_grow_to_a_bound_and_start_anew() -> None:
    """Pauses between connections grow up to a bound; an event that can be read resets them."""
    line = Line(
        [tell("1", "reset"), AWAY],
        [tell("2", "odd"), AWAY],
        *([[AWAY]] * 5),
        [tell("3", "reset"), BUSY],
    )

    told = line.take(11)

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


UNTIL_S = 60.0


def test_news_are_taken_in_order() -> None:
    """`take` returns waiting events at once, in order, and can wait for the first."""
    go_on, ended = threading.Event(), threading.Event()

    @contextmanager
    def connect(_last_id: str) -> Iterator[Iterator[Event]]:
        def events() -> Iterator[Event]:
            yield Event("b-1", "ready", "{}")
            go_on.wait(UNTIL_S)
            yield Event("b-2", "weather", "{}")
            ended.wait(UNTIL_S)

        yield events()

    event_thread = EventThread(connect)
    first = list(event_thread.take(UNTIL_S))
    nothing = list(event_thread.take())
    go_on.set()
    second = list(event_thread.take(UNTIL_S))
    event_thread.close()
    ended.set()

    assert (first, nothing) == ([ReadyEvent()], [])
    assert second == [Ignored("weather", "this fnctl does not know such events")]
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
                yield Event("", "ready", "{}")

        yield events()

    event_thread = EventThread(connect)
    full.wait(UNTIL_S)
    event_thread.close()
    event_thread.join(UNTIL_S)

    assert given == KEPT_MAX + 1
    assert len(list(event_thread.take())) == KEPT_MAX
