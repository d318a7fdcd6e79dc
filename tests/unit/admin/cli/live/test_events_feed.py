from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from admin.cli.live.events import KEPT_MAX, Feed, Told
from admin.client.sse import Event
from admin.client.transport import Unreachable

UNTIL_S = 60.0


def test_news_are_taken_in_order() -> None:
    """What has come is there at once; the first of it may be waited for."""
    go_on, ended = threading.Event(), threading.Event()

    @contextmanager
    def connect(_last_id: str) -> Iterator[Iterator[Event]]:
        def events() -> Iterator[Event]:
            yield Event("b-1", "reset", "{}")
            go_on.wait(UNTIL_S)
            yield Event("b-2", "ready", "{}")
            ended.wait(UNTIL_S)

        yield events()

    feed = Feed(connect)
    first = list(feed.take(UNTIL_S))
    nothing = list(feed.take())
    go_on.set()
    second = list(feed.take(UNTIL_S))
    feed.close()
    ended.set()

    assert (first, nothing, second) == ([Told("reset", {})], [], [Told("ready", {})])
    feed.join(UNTIL_S)


def test_what_ends_the_news_is_raised() -> None:
    """A server that is not there ends the command, not a thread."""

    @contextmanager
    def connect(_last_id: str) -> Iterator[Iterator[Event]]:
        raise Unreachable("nobody there")
        yield

    feed = Feed(connect)

    with pytest.raises(Unreachable, match="nobody there"):
        list(feed.take(UNTIL_S))
    feed.close()
    feed.join(UNTIL_S)


def test_a_reader_that_does_not_take_stops_the_reading() -> None:
    """Only so many news are kept."""
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

    feed = Feed(connect)
    full.wait(UNTIL_S)
    feed.close()
    feed.join(UNTIL_S)

    assert given == KEPT_MAX + 1
    assert len(list(feed.take())) == KEPT_MAX
