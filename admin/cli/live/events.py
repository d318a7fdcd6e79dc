"""The events of a server without end: when the connection breaks they go on where they were.

News read in a thread, for one who has a terminal to look after meanwhile.
"""

from __future__ import annotations

import http.client
import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from admin.client.sse import Event
from admin.client.transport import ApiError, Unreachable

PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 10.0)
"""Seconds before the next try, and the one after it; the last one is for all that follow."""


Connect = Callable[[str], AbstractContextManager[Iterator[Event]]]
"""Opens the events that follow the one with this id; "" for all. Raises ApiError, Unreachable."""


@dataclass(frozen=True, slots=True)
class Told:
    """An event: its kind and its data."""

    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Broken:
    """No events for the next `pause_s` seconds at least, and why."""

    why: str
    pause_s: float


News = Told | Broken


class Position:
    """The id to go on from. What comes twice after a break is known by an id of before."""

    def __init__(self) -> None:
        self.id = ""
        self._latest = ""
        self._is_reading = False

    def take(self, event: Event) -> bool:
        """Note an event; whether it is news. One without an id of its own has the last one's."""
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


def follow(connect: Connect, pause: Callable[[float], object]) -> Iterator[News]:
    """The events, and where they break; `pause` waits so many seconds.

    Raises what `connect` raises if there was no event yet, and later a refusal that will not pass.
    """
    position, tries, was_there = Position(), 0, False
    while True:
        why = "the server ended the events"
        try:
            with connect(position.id) as events:
                for event in events:
                    if position.take(event) and (told := _told(event)):
                        yield told
                        was_there, tries = True, 0
        except (ApiError, Unreachable) as error:
            if not was_there or not _passes(error):
                raise
            why = str(error)
        pause_s = PAUSES_S[min(tries, len(PAUSES_S) - 1)]
        tries += 1
        yield Broken(why, pause_s)
        pause(pause_s)


def _told(event: Event) -> Told | None:
    """An event's data if it is a JSON object, as every one is that we know of."""
    try:
        data = json.loads(event.data or "{}")
    except (ValueError, RecursionError):
        return None
    return Told(event.type, data) if isinstance(data, dict) else None


def _passes(error: ApiError | Unreachable) -> bool:
    """Whether it may be otherwise in a while: the server is away, too busy or shutting down."""
    return (
        isinstance(error, Unreachable)
        or error.status >= http.client.INTERNAL_SERVER_ERROR
        or error.status == http.client.TOO_MANY_REQUESTS
    )


def _precedes(id: str, latest: str) -> bool:
    """Whether `id` ("BOOT-SEQ") is of the same boot as `latest` and before it."""
    boot, _, number = id.rpartition("-")
    latest_boot, _, latest_number = latest.rpartition("-")
    if boot != latest_boot or not (number.isdecimal() and latest_number.isdecimal()):
        return False
    return int(number) < int(latest_number)


KEPT_MAX: Final = 1000
"""News that wait to be taken. With more the reading stops, and the server ends a connection that
is not read: nothing is lost, it is told again."""


class Feed:
    """The news of `connect` from now on. Close it, whatever happens.

    The thread may be left in a read when this process ends: it holds nothing but its connection.
    """

    def __init__(self, connect: Connect) -> None:
        self._kept: queue.Queue[News | Exception] = queue.Queue(KEPT_MAX)
        self._ended = threading.Event()
        self._news = follow(connect, self._ended.wait)
        self._thread = threading.Thread(target=self._read, name="events", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float = 0.0) -> Iterator[News]:
        """What has come; the first of it is waited for up to `timeout_s`.

        Raises what ended the news: ApiError or Unreachable.
        """
        for count in range(KEPT_MAX):
            try:
                news = self._kept.get(timeout_s > 0 and not count, timeout_s)
            except queue.Empty:
                return
            if isinstance(news, Exception):
                raise news
            yield news

    def close(self) -> None:
        """End the reading with the next event."""
        self._ended.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the reading."""
        self._thread.join(timeout_s)

    def _read(self) -> None:
        try:
            for news in self._news:
                if self._ended.is_set() or not self._keep(news):
                    return
        except Exception as error:  # noqa: BLE001 - raised again where the news are taken
            self._keep(error)

    def _keep(self, news: News | Exception) -> bool:
        """Whether there was room for it before the end."""
        while not self._ended.is_set():
            try:
                self._kept.put(news, timeout=1.0)
            except queue.Full:
                continue
            return True
        return False


__all__ = ["Broken", "Feed", "News"]
