"""Event stream of a server, resumed across lost connections, and a thread that reads it."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from admin.client.sse import Backoff, Connect, Disconnected, Event, Position, resumed

KEPT_MAX: Final = 1000
"""Max items that wait to be taken. Beyond it reading stops, the server ends the connection, and the
same events arrive on the next one."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """Event with its kind and its data."""

    kind: str
    data: dict[str, Any]


StreamItem = ServerEvent | Disconnected


class SnapshotPosition(Position):
    """Position that never lies within a snapshot, and that detects repeated events by their ids."""

    def __init__(self) -> None:
        super().__init__()
        self._latest = ""
        self._is_reading = False

    def accept(self, event: Event) -> bool:
        """Record `event`; return False if it was received before. An event without an id has the
        id of the event before it."""
        if event.type == "reset":
            # A stream cannot be resumed within a snapshot: no id until its end.
            self.id, self._latest, self._is_reading = "", "", True
        elif event.type == "ready":
            self._is_reading = False
        if _precedes(event.id, self._latest):
            return False
        self._latest = event.id or self._latest
        if not self._is_reading:
            self.id = self._latest
        return True


def follow(connect: Connect, pause: Callable[[float], object]) -> Iterator[StreamItem]:
    """Yield events and lost connections; `pause` waits for the given seconds.

    Events that are not JSON objects are skipped. Raises ApiError or Unreachable before the first
    event, and later only a refusal that is permanent.
    """
    retry = Backoff()
    for item in resumed(connect, retry, SnapshotPosition(), pause):
        if isinstance(item, Disconnected):
            yield item
        elif (event := _parsed(item)) is not None:
            retry.received()
            yield event


def _parsed(event: Event) -> ServerEvent | None:
    try:
        data = json.loads(event.data or "{}")
    except (ValueError, RecursionError):
        return None
    return ServerEvent(event.type, data) if isinstance(data, dict) else None


def _precedes(id: str, latest: str) -> bool:
    """Return whether `id` ("BOOT-SEQ") is of the same boot as `latest` and before it."""
    boot, _, number = id.rpartition("-")
    latest_boot, _, latest_number = latest.rpartition("-")
    if boot != latest_boot or not (number.isdecimal() and latest_number.isdecimal()):
        return False
    return int(number) < int(latest_number)


class EventThread:
    """Thread that follows the events of `connect` from now on. The owner must close it.

    The thread may be blocked in a read when this process exits: it holds only its connection.
    """

    def __init__(self, connect: Connect) -> None:
        self._queue: queue.Queue[StreamItem | Exception] = queue.Queue(KEPT_MAX)
        self._closed = threading.Event()
        self._items = follow(connect, self._closed.wait)
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
