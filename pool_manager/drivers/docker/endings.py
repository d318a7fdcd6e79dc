"""What is known of how containers ended, and how that is said."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pool_manager.driver import MEMORY_KILL
from pool_manager.drivers.docker.shape import REPLICA

SIGNAL_BASE = 128
"""An exit code above this says which signal ended the process (the engine, and its init)."""
KILLED = SIGNAL_BASE + signal.SIGKILL
NEWS_MAX = 16
"""Of a start that has not returned; each of its tries ends once."""


@dataclass(frozen=True, slots=True)
class News:
    """What the engine told of a container: `code` is None where it ran out of memory."""

    container: str
    code: int | None


def read_event(event: dict[str, Any]) -> tuple[str, News]:
    """Of an event of kind die or oom the replica, "" for what is none, and what it says."""
    actor = event.get("Actor") or {}
    attributes = actor.get("Attributes") or {}
    code = int(attributes.get("exitCode", -1)) if event.get("Action") == "die" else None
    return str(attributes.get(REPLICA, "")), News(str(actor.get("ID")), code)


@dataclass(slots=True, eq=False)
class Known:
    """One replica's container; `id` is "" until its start has returned, and what was heard by then
    waits in `early`: a start may try several containers. `is_told`: its end was reported, or it
    never came to be."""

    id: str = ""
    is_told: bool = False
    out_of_memory: bool = False
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    early: list[News] = field(default_factory=list)

    def start_returned(self, container: str) -> list[News]:
        """It runs as this container. Returns what was heard of that before."""
        self.id = container
        self.settled.set()
        heard, self.early = [one for one in self.early if one.container == container], []
        return heard

    def start_failed(self) -> None:
        """There is no container."""
        self.is_told = True
        self.settled.set()

    def keep(self, news: News) -> None:
        """Heard before its start has returned."""
        if len(self.early) < NEWS_MAX:
            self.early.append(news)


class Endings:
    """What ended while a list was being made, which may show it all the same."""

    def __init__(self) -> None:
        self._listings = 0
        self._ended: set[str] = set()

    def note(self, container: str) -> None:
        """It has ended, or was removed."""
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


def how(code: int | None, *, out_of_memory: bool) -> str:
    """`out_of_memory`: the kernel killed something in it for want of memory; that explains a KILL
    and nothing else, since the container may have gone on without what was killed."""
    if code is None:
        return "exited"
    if code == KILLED and out_of_memory:
        return f"{MEMORY_KILL} and was killed by SIGKILL"
    if code > SIGNAL_BASE:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(code - SIGNAL_BASE).name}"
    return f"exited with code {code}"
