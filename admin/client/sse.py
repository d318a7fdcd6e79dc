"""Server-sent events (WHATWG HTML, "Interpreting an event stream"): the parser (pure), one
connection, and the loop that resumes a stream after its connection broke."""

from __future__ import annotations

import http.client
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from admin.client.transport import ApiError, Transport, Unreachable

EVENT_MAX: Final = 8 * 1024 * 1024
"""Max bytes of one event; no event of a server is larger."""

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"
CONTENT_TYPE: Final = "text/event-stream"
SILENT_S: Final = 45.0
"""Seconds without a byte after which a connection counts as dead; a server sends a comment every
15 s."""
PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 10.0)
"""Seconds before each consecutive attempt."""


class Event(NamedTuple):
    """One event. `id` is the last id that the stream sent, "" if it sent none."""

    id: str
    type: str
    data: str


class EventTooLong(ValueError):
    """An event exceeds the memory limit."""


class Parser:
    """Parser from a stream's bytes to events. `last_id` resumes the stream.

    Lines end with LF, CR or CRLF, and bytes may be split anywhere.
    """

    def __init__(self, last_id: str = "", event_max: int = EVENT_MAX) -> None:
        """`last_id` of an earlier connection holds until the stream sends an id."""
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
        """Return the events that this piece completes. Raises EventTooLong."""
        if not piece:
            return []
        if self._after_cr:
            # The CR has already ended the line; this LF belongs to it.
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
        """Return the event that an empty line completes; None without data, but its id counts."""
        self.last_id = self._id
        kind, data = self._type or "message", self._data
        self._type, self._data, self._size = "", [], 0
        if not data:
            return None
        return Event(self.last_id, kind, b"\n".join(data).decode(errors="replace"))


@contextmanager
def open_stream(
    transport: Transport, path: str, last_id: str = "", silent_s: float = SILENT_S
) -> Iterator[Iterator[Event]]:
    """Open the stream of GET `path` after the event `last_id`, while the block runs.

    The iterator ends with the stream. It raises Unreachable if the connection breaks or is silent
    for `silent_s`. Opening raises ApiError for a refusal, Unreachable without a server.
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


Connect = Callable[[str], AbstractContextManager[Iterator[Event]]]
"""Opens the stream after the event with this id ("": from its beginning). Raises ApiError or
Unreachable."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """Lost connection: the reason, and the seconds until the next attempt."""

    why: str
    pause_s: float


class Position:
    """Id of the last event, after which a new connection continues."""

    def __init__(self) -> None:
        self.id = ""

    def record(self, event: Event) -> None:
        """Continue after `event`."""
        self.id = event.id


class Retry:
    """When a stream that broke is opened again.

    Final are any error before the server has accepted a connection, a refusal other than "busy"
    (429, 5xx), and an error `patience_s` seconds after the connection was lost. `pauses_s`: seconds
    before each attempt since the last event; the last one is repeated. `on_lost` receives the
    reason, once per outage; `on_back` is called when the server accepts a connection again. `clock`
    returns seconds.
    """

    def __init__(
        self,
        pauses_s: Sequence[float] = PAUSES_S,
        patience_s: float = math.inf,
        *,
        on_lost: Callable[[str], None] = lambda _why: None,
        on_back: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pauses_s, self._patience_s = pauses_s, patience_s
        self._on_lost, self._on_back, self._clock = on_lost, on_back, clock
        self._has_answered = False
        self._attempts = 0
        self._lost_since_s: float | None = None

    def connected(self) -> None:
        """Record that the server accepted the connection: the end of an outage."""
        self._has_answered = True
        if self._lost_since_s is not None:
            self._lost_since_s = None
            self._on_back()

    def received(self) -> None:
        """Record an event: the next pause is the shortest one again."""
        self._attempts = 0

    def pause_s(self, error: ApiError | Unreachable | None) -> float:
        """Return the seconds until the next attempt; `error` is None after a regular end. Raises
        `error` if it is final."""
        if error is not None:
            self._count(error)
        self._attempts += 1
        return self._pauses_s[min(self._attempts, len(self._pauses_s)) - 1]

    def _count(self, error: ApiError | Unreachable) -> None:
        if not (self._has_answered and _is_passing(error)):
            raise error
        if self._lost_since_s is None:
            self._lost_since_s = self._clock()
            self._on_lost(str(error))
        elif self._clock() - self._lost_since_s >= self._patience_s:
            raise error


def resumed(
    connect: Connect,
    retry: Retry,
    position: Position,
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[Event | Disconnected]:
    """Yield every event after `position`, over any number of connections, and each lost connection.

    A stream that the server ends is opened again, too. Raises what `retry` raises.
    """
    while True:
        failure: ApiError | Unreachable | None = None
        try:
            with connect(position.id) as events:
                retry.connected()
                for event in events:
                    position.record(event)
                    yield event
        except (ApiError, Unreachable) as error:
            failure = error
        pause_s = retry.pause_s(failure)
        yield Disconnected(str(failure or "the server ended the events"), pause_s)
        pause(pause_s)


def _is_passing(error: ApiError | Unreachable) -> bool:
    """Return whether the server may only be away, overloaded or shutting down."""
    if isinstance(error, Unreachable):
        return True
    busy = http.client.TOO_MANY_REQUESTS
    return error.status >= http.client.INTERNAL_SERVER_ERROR or error.status == busy
