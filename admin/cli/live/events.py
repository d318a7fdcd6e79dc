"""The server's events as data, across lost connections, and a thread that reads them."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from admin.client.sse import Backoff, Connect, Disconnected, Event, Position, resumed

KEPT_MAX: Final = 1000
"""Items that wait to be taken. With more the reading stops, the server ends the connection, and the
same events come over the next one."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """An event: its kind and its data."""

    kind: str
    data: dict[str, Any]


StreamItem = ServerEvent | Disconnected


class SnapshotPosition(Position):
    """A position that is never within a snapshot, and knows events that come twice by their ids."""

    def __init__(self) -> None:
        super().__init__()
        self._latest = ""
        self._is_reading = False

    def accept(self, event: Event) -> bool:
        """Record `event`; False where it was received before. One without an id of its own has the
        last one's."""
        if event.type == "reset":
            # Half a snapshot is nothing to go on from: until its end the id is none.
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
    """The events, and where their connections end; `pause` waits so many seconds.

    Events that are no JSON objects are left out. Raises ApiError or Unreachable if there was no
    event yet, and later a refusal that will not pass.
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
    """Whether `id` ("BOOT-SEQ") is of the same boot as `latest` and before it."""
    boot, _, number = id.rpartition("-")
    latest_boot, _, latest_number = latest.rpartition("-")
    if boot != latest_boot or not (number.isdecimal() and latest_number.isdecimal()):
        return False
    return int(number) < int(latest_number)


class EventThread:
    """Follows the events of `connect` in a thread from now on. Close it, whatever happens.

    The thread may be left in a read when this process ends: it holds nothing but its connection.
    """

    def __init__(self, connect: Connect) -> None:
        self._queue: queue.Queue[StreamItem | Exception] = queue.Queue(KEPT_MAX)
        self._closed = threading.Event()
        self._items = follow(connect, self._closed.wait)
        self._thread = threading.Thread(target=self._read, name="events", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float = 0.0) -> Iterator[StreamItem]:
        """What has arrived; the first item is waited for up to `timeout_s`.

        Raises what ended the events: ApiError or Unreachable.
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
        """End the reading with the next event."""
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
        """Queue `item`; False where it was closed before there was room."""
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=1.0)
            except queue.Full:
                continue
            return True
        return False
