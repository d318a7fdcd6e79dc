"""An event stream of the server over HTTP, and over SSH: one connection, read to its end.

Server-sent events out of bytes, as they come. Pure.

By the rules of the WHATWG's HTML standard, "Interpreting an event stream": lines end with LF, CR or
CRLF, and bytes may be split anywhere.

An event stream that goes on when the server goes away and comes back.
"""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, NamedTuple

from admin.client.transport import ApiError, Transport, Unreachable

EVENT_MAX: Final = 8 * 1024 * 1024
"""Bytes of one event; above any that a server of ours sends."""

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event. `id` is the last one that the stream has told, "" for none."""

    id: str
    type: str
    data: str


class EventTooLong(ValueError):
    """An event that would fill the memory: this is no stream of ours."""


class Parser:
    """Takes a stream's bytes, gives its events. `last_id` is what to go on from after a break."""

    def __init__(self, last_id: str = "", event_max: int = EVENT_MAX) -> None:
        """`last_id` of an earlier connection counts until the stream tells another."""
        self.last_id = last_id
        self._id = last_id
        self._type = ""
        self._data: list[bytes] = []
        self._rest = bytearray()
        self._size = 0
        self._event_max = event_max
        self._is_first = True
        self._after_cr = False

    def feed(self, piece: bytes) -> list[Event]:
        """The events that are complete with this piece. Raises EventTooLong."""
        if not piece:
            return []
        if self._after_cr:
            # The CR has ended its line already; this LF belongs to it.
            piece = piece.removeprefix(b"\n")
        self._after_cr = piece.endswith(b"\r")
        *ended, rest = _LINE_END.split(piece)
        events = []
        for line in ended:
            self._keep(line)
            event = self._take(bytes(self._rest))
            self._rest.clear()
            if event is not None:
                events.append(event)
        self._keep(rest)
        return events

    def _keep(self, part: bytes) -> None:
        self._rest += part
        if self._size + len(self._rest) > self._event_max:
            raise EventTooLong(f"expected events of at most {self._event_max} bytes, got more")

    def _take(self, line: bytes) -> Event | None:
        if self._is_first:
            self._is_first = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value) + 1
        elif name == b"event":
            self._type = value.decode(errors="replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")
        return None

    def _dispatch(self) -> Event | None:
        """An empty line: the event is whole. One without data is none, but its id counts."""
        self.last_id = self._id
        kind, data = self._type or "message", self._data
        self._type, self._data, self._size = "", [], 0
        if not data:
            return None
        return Event(self.last_id, kind, b"\n".join(data).decode(errors="replace"))


CONTENT_TYPE: Final = "text/event-stream"
SILENT_S: Final = 45.0
"""A server says something every 15 s, if only that it is there."""


@contextmanager
def open_stream(
    transport: Transport, path: str, last_id: str = "", silent_s: float = SILENT_S
) -> Iterator[Iterator[Event]]:
    """The events of GET `path` after the one with `last_id`, while the block runs.

    The iterator ends where the server ends the stream, and raises Unreachable where it breaks off
    or is silent for `silent_s`. Raises ApiError where the server refuses, Unreachable where
    there is none.
    """
    headers = {"Accept": CONTENT_TYPE, "Cache-Control": "no-store"}
    if last_id:
        headers["Last-Event-ID"] = last_id
    with transport.open(path, headers, silent_s) as (reply, pieces):
        given = reply.headers.get_content_type()
        if given != CONTENT_TYPE:
            detail = f"GET {path}: expected {CONTENT_TYPE}, got {given}"
            raise ApiError(reply.status, {"title": "This server sends no events", "detail": detail})
        yield _events(pieces, last_id)


def _events(pieces: Iterator[bytes], last_id: str) -> Iterator[Event]:
    parser = Parser(last_id)
    for piece in pieces:
        try:
            yield from parser.feed(piece)
        except EventTooLong as error:
            raise Unreachable(f"the stream cannot be read: {error}") from error


PATIENCE_S: Final = 60.0
"""How long a server may be away."""
PAUSE_S: Final = 0.5
"""Between two tries to reach it."""

Connect = Callable[[str], AbstractContextManager[Iterator[Event]]]
"""Opens the stream after the event with this id, "" for its beginning."""


class Absence:
    """How long the server has been away. `away` is told why nothing comes, once for each absence,
    `back` that it answers again; `clock` gives seconds."""

    def __init__(
        self,
        away: Callable[[str], None],
        back: Callable[[], None],
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._away = away
        self._back = back
        self._patience_s = patience_s
        self._clock = clock
        self._was_there = False
        self._since_s: float | None = None

    def over(self) -> None:
        """The server answers."""
        self._was_there = True
        if self._since_s is not None:
            self._since_s = None
            self._back()

    def suffer(self, error: Exception) -> None:
        """It does not. Raises `error` where it never did, or has not for too long."""
        if not self._was_there:
            raise error
        if self._since_s is None:
            self._since_s = self._clock()
            self._away(str(error))
        elif self._clock() - self._since_s >= self._patience_s:
            raise error


def resumed(
    connect: Connect, absence: Absence, pause: Callable[[float], None] = time.sleep
) -> Iterator[Event]:
    """Every event, over as many connections as it takes: a stream that ends is asked for again.

    Raises ApiError where the server refuses, as it does where nothing more will come, and
    Unreachable where it stays away.
    """
    last_id = ""
    while True:
        try:
            with connect(last_id) as events:
                absence.over()
                for event in events:
                    last_id = event.id
                    yield event
        except Unreachable as error:
            absence.suffer(error)
        except ApiError as error:
            if error.status < http.client.INTERNAL_SERVER_ERROR:
                raise
            absence.suffer(error)
        pause(PAUSE_S)
