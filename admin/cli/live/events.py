"""Event stream of a server, resumed across lost connections, and a thread that reads it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from admin.client.sse import Connect, Disconnected, Event, Position, Retry, resumed
from admin.documents.events import SERVER_EVENTS, ServerEvent

KEPT_MAX: Final = 1000
"""Max items that wait to be taken. Beyond it reading stops, the server ends the connection, and the
same events arrive on the next one."""

ITEMS_MAX: Final = 1000
"""Max items of an event that are read one by one; a server sends 200."""
_Decoder = msgspec.json.Decoder
_RAW_ITEMS: Final = _Decoder(dict[str, list[msgspec.Raw]])
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ignored:
    """Event that cannot be read, or an item of it."""

    kind: str
    """Kind of the event."""
    why: str
    """What was expected, and what came."""


StreamItem = ServerEvent | Ignored | Disconnected


class SnapshotPosition(Position):
    """Position that never lies within a snapshot, in which a stream cannot be resumed."""

    def __init__(self) -> None:
        super().__init__()
        self._is_reading = False

    def record(self, event: Event) -> None:
        """Continue after `event`, or from the beginning if it is of a snapshot."""
        if event.type in ("reset", "ready"):
            self._is_reading = event.type == "reset"
        self.id = "" if self._is_reading else event.id


def follow(
    connect: Connect, pause: Callable[[float], object], read: Callable[[Event], Iterable[T]]
) -> Iterator[T | Disconnected]:
    """Yield all that `read` finds in the events, and lost connections; `pause` waits for the given
    seconds.

    Raises ApiError or Unreachable before the server has accepted a connection, and later only a
    refusal that is permanent.
    """
    retry = Retry()
    for item in resumed(connect, retry, SnapshotPosition(), pause):
        if isinstance(item, Disconnected):
            yield item
            continue
        for found in read(item):
            if not isinstance(found, Ignored):
                retry.received()
            yield found


class EventReader(Generic[T]):
    """Reader of the events whose types are named in `types`."""

    def __init__(self, types: Mapping[str, type[T]]) -> None:
        self._decoders = {kind: _Decoder(type_) for kind, type_ in types.items()}

    def read(self, event: Event) -> Iterator[T | Ignored]:
        """Yield the data of an event. If an item of a list cannot be read, as a server of another
        release may send it, yield each of the others."""
        decoder = self._decoders.get(event.type)
        if decoder is None:
            yield Ignored(event.type, "this fnctl does not know such events")
            return
        try:
            yield decoder.decode(event.data or "{}")
        except (ValueError, RecursionError) as error:
            items = _items(event.data)
            if not 1 < len(items) <= ITEMS_MAX:
                yield Ignored(event.type, str(error).replace("items[0]", "items[]"))
                return
            for item in items:
                yield from self.read(event._replace(data=f'{{"items":[{item}]}}'))


def _items(data: str) -> list[str]:
    """Return the JSON of each item of a list; none for other data."""
    try:
        return [bytes(item).decode() for item in _RAW_ITEMS.decode(data)["items"]]
    except (ValueError, RecursionError, KeyError):
        return []


read_event: Final = EventReader(SERVER_EVENTS).read


class EventThread:
    """Thread that follows the events of `connect` from now on. The owner must close it.

    The thread may be blocked in a read when this process exits: it holds only its connection.
    """

    def __init__(self, connect: Connect) -> None:
        self._queue: queue.Queue[StreamItem | Exception] = queue.Queue(KEPT_MAX)
        self._closed = threading.Event()
        self._items = follow(connect, self._closed.wait, read_event)
        self._thread = threading.Thread(target=self._read, name="events", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float = 0.0) -> Iterator[StreamItem]:
        """Yield the items that have arrived; wait for the first one for up to `timeout_s`.

        Raises the error that ended the events: ApiError or Unreachable.
        """
        for count in range(KEPT_MAX):
            try:
                item = self._queue.get(timeout_s > 0 and not count, timeout_s)
            except queue.Empty:
                return
            if isinstance(item, Exception):
                raise item
            yield item

    def close(self) -> None:
        """Stop reading at the next event."""
        self._closed.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread."""
        self._thread.join(timeout_s)

    def _read(self) -> None:
        try:
            for item in self._items:
                if self._closed.is_set() or not self._put(item):
                    return
        except Exception as error:  # noqa: BLE001 - raised again by `take`
            self._put(error)

    def _put(self, item: StreamItem | Exception) -> bool:
        """Queue `item`; return False if the thread was closed before there was room."""
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=1.0)
            except queue.Full:
                continue
            return True
        return False
