"""Container events of the engine: a listener thread, and the exits of containers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import docker
from urllib3.exceptions import HTTPError

from pool_manager.drivers.container_exits import (
    describe_exit,
    describe_server_exit,
    describe_sidecar_exit,
)
from pool_manager.drivers.docker.engine import ENGINE_ERRORS, Times, connect, translate
from pool_manager.drivers.docker.spec import REPLICA
from registry.errors import DriverError

BEFORE = timedelta(seconds=2)
"""Events are requested from this long ago, because the engine answers slightly before it begins to
collect events. Duplicates are harmless."""


EARLY_MAX = 16
"""Max events kept for a start that has not returned; each of its tries ends once."""


class EventListener:
    """Thread that reads the engine's event stream and reconnects whenever the stream ends.

    All callbacks run in the event loop's thread: `on_event(event)` for each event; `on_connected()`
    at the start of each stream (earlier events were missed, so the list must be read);
    `on_lost(reason)` once per absence of the engine.
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

    def close(self) -> None:
        """End the thread and wait for it, for a bounded time. No callback runs after that."""
        self._ended.set()
        with self._lock:
            if self._stream is not None:
                _close(self._stream)
        self._thread.join(self._times.close_s)

    def _run(self) -> None:
        """Read events until closed. The engine is reported lost only if reconnecting fails; after a
        quick restart it succeeds."""
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
        """Pass events on until the stream ends, regularly or in the middle of an event."""
        with contextlib.suppress(ValueError, OSError, HTTPError, *ENGINE_ERRORS):
            for event in events:
                self._post(self._on_event, event)
        with self._lock:
            self._stream = None

    def _open(self, client: docker.APIClient) -> Any:
        """Open a stream of events from now on. Raises EngineDown."""
        try:
            stream = client.events(
                since=_engine_time(client) - BEFORE, filters=self._filters, decode=True
            )
        except ENGINE_ERRORS as error:
            raise translate(error, "receive events") from error
        with self._lock:
            self._stream = stream
            if self._ended.is_set():
                _close(stream)
        self._post(self._on_connected)
        return stream

    def _post(self, callback: Callable[..., None], *arguments: Any) -> None:
        if not self._ended.is_set():
            self._loop.call_soon_threadsafe(callback, *arguments)


def _engine_time(client: docker.APIClient) -> datetime:
    """Return the time of the engine's clock, which is that of another machine if the engine is;
    this machine's time if the engine does not report it. Without time zone, in UTC, as docker-py
    wants it."""
    told = str(client.info().get("SystemTime") or "")
    try:
        # RFC 3339 with nanoseconds; a zone in hours and minutes, or Z.
        zone = told[-6:] if told[-6:-5] in ("+", "-") else "+00:00"
        found = datetime.fromisoformat(told[:19] + zone)
    except ValueError:
        found = datetime.now(UTC)
    return found.astimezone(UTC).replace(tzinfo=None)


def _close(stream: Any) -> None:
    """Close a stream, which wakes its reader; the stream may have ended already."""
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
    """The container of one replica, or the two of a server function's.

    `id` is the container of the model or the server, "" until its start has returned; `sidecar` is
    the one beside a server. Earlier events are kept in `early`, because a start may try several
    containers. `is_reported`: its exit was reported, or it was never created. `out_of_memory`
    concerns `id`, `is_sidecar_short` the sidecar. `doubt` is what may keep a server from running.
    `settled` is set when the start has returned or failed. `log` is where its output was saved
    last.
    """

    id: str = ""
    sidecar: str = ""
    is_reported: bool = False
    out_of_memory: bool = False
    is_sidecar_short: bool = False
    doubt: str = ""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    early: list[ContainerEvent] = field(default_factory=list)
    log: Path | None = None

    def start_returned(self, container: str, sidecar: str = "") -> list[ContainerEvent]:
        """Record what was started; return its early events."""
        self.id, self.sidecar = container, sidecar
        self.settled.set()
        early, self.early = self.early, []
        return [event for event in early if self.owns(event.container)]

    def owns(self, container: str) -> bool:
        """Whether a container is one of this replica's."""
        return container in (self.id, self.sidecar)

    def note_shortage(self, container: str) -> None:
        """Record that a container ran out of memory."""
        if container == self.id:
            self.out_of_memory = True
        else:
            self.is_sidecar_short = True

    def describe_exit(self, container: str, code: int | None) -> str:
        """Return how the replica ended, by the first end of one of its containers."""
        if not self.sidecar:
            return describe_exit(code, out_of_memory=self.out_of_memory)
        if container == self.id:
            how = describe_server_exit(code, out_of_memory=self.out_of_memory)
            return f"{how}; {self.doubt}" if self.doubt and code else how
        return describe_sidecar_exit(code, out_of_memory=self.is_sidecar_short)

    def start_failed(self) -> None:
        """Record that there is no container."""
        self.is_reported = True
        self.settled.set()

    def keep(self, news: ContainerEvent) -> None:
        """Keep an event that arrived before the start returned."""
        if len(self.early) < EARLY_MAX:
            self.early.append(news)


class EndedWhileListing:
    """Containers that ended while a list was being read; the list may still contain them."""

    def __init__(self) -> None:
        self._listings = 0
        self._ended: set[str] = set()

    def note(self, container: str) -> None:
        """Record a container that has ended or was removed."""
        if self._listings:
            self._ended.add(container)

    @contextlib.contextmanager
    def listing(self) -> Iterator[None]:
        """Record ends while the block reads a list and filters it with `without`."""
        self._listings += 1
        try:
            yield
        finally:
            self._listings -= 1
            if not self._listings:
                self._ended.clear()

    def without(self, listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the listed containers that have not ended since."""
        return [one for one in listed if one["Id"] not in self._ended]
