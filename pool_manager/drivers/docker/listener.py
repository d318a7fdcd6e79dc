"""Hears from the engine how containers end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import docker
from urllib3.exceptions import HTTPError

from pool_manager.drivers.docker.engine import Times, connect
from pool_manager.drivers.docker.failures import ENGINE_ERRORS, translate
from registry.errors import DriverError

BEFORE = timedelta(seconds=2)
"""Events are asked for from this long ago: the engine answers a moment before it begins to
collect, and what it tells twice does no harm."""


class Listener:
    """One thread that reads the engine's events and connects again whenever they end.

    All callbacks come in the loop's thread: `on_event(event)` for each event, `on_connected()`
    whenever events begin to come (what happened before was not seen: the list must be read),
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
        """An engine that was just restarted is there again at the first try: only if that fails
        it is called lost."""
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
