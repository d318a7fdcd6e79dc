from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from admin.client.sse import PAUSE_S, Disconnected, Event, Patience, Position, resumed
from admin.client.transport import ApiError, Unreachable

Turn = list[Event] | Exception


class Server:
    """Answers one connection after the other as it is told: events, or what goes wrong."""

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

        retry = Patience(self.told.append, back, patience_s, lambda: self.now_s)
        for item in resumed(self.connect, retry, Position(), self.pause):
            if not isinstance(item, Disconnected):
                yield item


ONE, TWO = Event("1", "lines", "a"), Event("2", "lines", "b")
GONE = ApiError(404, {"title": "There is no such function"})
BUSY = ApiError(503, {"title": "The server is shutting down"})


def test_a_stream_goes_on_after_its_last_event() -> None:
    """A server that was away is asked for what came after the last event; both is told once."""
    server = Server([ONE], Unreachable("refused"), BUSY, [TWO], GONE)

    with pytest.raises(ApiError, match="no such function"):
        for _ in server.read():
            pass

    assert server.asked == ["", "1", "1", "1", "2"]
    assert server.told == ["refused", "back"]


def test_every_event_is_given() -> None:
    """Events of all connections come in order."""
    server = Server([ONE], [TWO])

    assert list(itertools.islice(server.read(), 2)) == [ONE, TWO]
    assert server.told == []


def test_a_server_that_never_answered_is_no_absence() -> None:
    """What cannot be reached at first is an error at once."""
    server = Server(Unreachable("refused"))

    with pytest.raises(Unreachable, match="refused"):
        next(server.read())


def test_patience_ends() -> None:
    """A server that stays away is given up."""
    patience_s = 3 * PAUSE_S
    server = Server([ONE], *[Unreachable("refused")] * 9)

    with pytest.raises(Unreachable):
        for _ in server.read(patience_s):
            pass

    assert server.now_s == pytest.approx(PAUSE_S + patience_s)
