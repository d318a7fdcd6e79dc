"""The engine's container events: a listener thread, and the exits of containers."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import docker
from urllib3.exceptions import HTTPError

from pool_manager.driver import MEMORY_KILL
from pool_manager.drivers.docker.engine import ENGINE_ERRORS, Times, connect, translate
from pool_manager.drivers.docker.spec import REPLICA
from registry.errors import DriverError

BEFORE = timedelta(seconds=2)
"""Events are asked for from this long ago: the engine answers a moment before it begins to
collect, and what it tells twice does no harm."""


SIGNAL_BASE = 128
"""An exit code above this says which signal ended the process (the engine, and its init)."""
KILLED = SIGNAL_BASE + signal.SIGKILL
EARLY_MAX = 16
"""Events kept for a start that has not returned; each of its tries ends once."""


class EventListener:
    """One thread that reads the engine's events and connects again whenever they end.

    All callbacks run in the loop's thread: `on_event(event)` for each event, `on_connected()`
    whenever events begin to come (earlier ones were missed: the list must be read),
    `on_lost(reason)` once for each time the engine goes away.
    """

    def __init__(
        self,
        url: str,
        filters: dict[str, Any],
        on_event: Callable[[dict[str, Any]], None],
        on_connected: Callable[[], None],
        on_lost: Callable[[str], None],
        times: Times,
    ) -> None:
        self._url = url
        self._times = times
        self._filters = filters
        self._on_event = on_event
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._stream: Any = None
        self._thread = threading.Thread(target=self._run, name="docker events", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether its thread still runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End the thread and wait for it, for a bounded time. No callback comes after that."""
        self._ended.set()
        with self._lock:
            if self._stream is not None:
                _close(self._stream)
        self._thread.join(self._times.close_s)

    def _run(self) -> None:
        """The engine is reported lost only where a second connection fails: after a restart the
        first one succeeds."""
        is_lost = False
        while not self._ended.is_set():
            try:
                client = connect(self._url, self._times.connect_s)
                with contextlib.closing(client):
                    events = self._open(client)
                    is_lost = False
                    self._pass_on(events)
            except DriverError as error:
                if not is_lost:
                    self._post(self._on_lost, error.message)
                is_lost = True
            self._ended.wait(self._times.reconnect_s)

    def _pass_on(self, events: Any) -> None:
        """Until they end, whether in good order or in the middle of one."""
        with contextlib.suppress(ValueError, OSError, HTTPError, *ENGINE_ERRORS):
            for event in events:
                self._post(self._on_event, event)
        with self._lock:
            self._stream = None

    def _open(self, client: docker.APIClient) -> Any:
        """Events from now on. Raises EngineDown."""
        try:
            since = datetime.now(UTC).replace(tzinfo=None) - BEFORE
            stream = client.events(since=since, filters=self._filters, decode=True)
        except ENGINE_ERRORS as error:
            raise translate(error, "hear events") from error
        with self._lock:
            self._stream = stream
            if self._ended.is_set():
                _close(stream)
        self._post(self._on_connected)
        return stream

    def _post(self, callback: Callable[..., None], *arguments: Any) -> None:
        if not self._ended.is_set():
            self._loop.call_soon_threadsafe(callback, *arguments)


def _close(stream: Any) -> None:
    """Wakes whoever reads it; it may just have ended by itself."""
    with contextlib.suppress(OSError, AttributeError):
        stream.close()


@dataclass(frozen=True, slots=True)
class ContainerEvent:
    """A container exited with `code`, or ran out of memory (None)."""

    container: str
    code: int | None


def read_event(event: dict[str, Any]) -> tuple[str, ContainerEvent]:
    """Parse a die or oom event into (replica id or "", event)."""
    actor = event.get("Actor") or {}
    attributes = actor.get("Attributes") or {}
    code = int(attributes.get("exitCode", -1)) if event.get("Action") == "die" else None
    return str(attributes.get(REPLICA, "")), ContainerEvent(str(actor.get("ID")), code)


@dataclass(slots=True, eq=False)
class KnownContainer:
    """One replica's container. `id` is "" until its start has returned; events before that wait in
    `early`, for a start may try several containers. `is_reported`: its exit was reported, or it was
    never created."""

    id: str = ""
    is_reported: bool = False
    out_of_memory: bool = False
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    early: list[ContainerEvent] = field(default_factory=list)

    def start_returned(self, container: str) -> list[ContainerEvent]:
        """It runs as this container. Returns the early events of that one."""
        self.id = container
        self.settled.set()
        early, self.early = self.early, []
        return [event for event in early if event.container == container]

    def start_failed(self) -> None:
        """There is no container."""
        self.is_reported = True
        self.settled.set()

    def keep(self, news: ContainerEvent) -> None:
        """Keep an event that came before its start has returned."""
        if len(self.early) < EARLY_MAX:
            self.early.append(news)


class EndedWhileListing:
    """Containers that ended while a list was being made, which may show them all the same."""

    def __init__(self) -> None:
        self._listings = 0
        self._ended: set[str] = set()

    def note(self, container: str) -> None:
        """A container has ended, or was removed."""
        if self._listings:
            self._ended.add(container)

    @contextlib.contextmanager
    def listing(self) -> Iterator[None]:
        """While a list is made and looked through with `without`."""
        self._listings += 1
        try:
            yield
        finally:
            self._listings -= 1
            if not self._listings:
                self._ended.clear()

    def without(self, listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Of listed containers those that have not ended since."""
        return [one for one in listed if one["Id"] not in self._ended]


def describe_exit(code: int | None, *, out_of_memory: bool) -> str:
    """An exit in words. `out_of_memory`: the kernel killed a process of the container for lack of
    memory, which explains a KILL alone: the container may have gone on without that process."""
    if code is None:
        return "exited"
    if code == KILLED and out_of_memory:
        return f"{MEMORY_KILL} and was killed by SIGKILL"
    if code > SIGNAL_BASE:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(code - SIGNAL_BASE).name}"
    return f"exited with code {code}"
