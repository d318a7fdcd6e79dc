"""Event source for followers: item states that differ from the last sent ones, and occurrences."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final

import msgspec
import structlog

from admin.documents.events import GoneEvent, ReadyEvent, ResetEvent, ServerEvent, ServerFacts
from admin.events.log import KINDS, EventLog, Item, SentState
from admin.events.snapshot import StateReader, function_of
from admin.events.sse import Position, frame, frames, listing, pieces
from registry.catalog import Catalog, Change
from registry.exchange import decode_endpoints
from registry.model.functions import NAMESPACE

Read = Callable[[int, str], tuple[list[bytes], int]]

log = structlog.get_logger()
UPDATE_S: Final = 0.1
"""Changes of an item within this many seconds become one event."""
FUNCTIONS_PER_BATCH: Final = 50
"""Functions read in one turn of the event loop, which also serves calls. The next batch follows
BATCH_GAP_S later."""
BATCH_GAP_S: Final = 0.01
LINGER_S: Final = 30.0
"""Seconds to keep recording after the last follower left, in case it reconnects."""
RECENT_MAX: Final = 100
encode = msgspec.json.Encoder().encode


class Follower:
    """One client of the events: await `news`, then `take` them. A slow follower gets all events at
    once when it takes, and the whole state if it missed too many."""

    def __init__(self, read: Read, seq: int, about: str) -> None:
        """`read(seq, about)` returns the events after `seq`, in pieces, and the new number."""
        self._read = read
        self._seq = seq
        self._about = about
        self._beat = b""
        self._news = asyncio.Event()
        self._news.set()

    async def news(self) -> None:
        """Wait until there are events to take."""
        await self._news.wait()
        self._news.clear()

    def take(self) -> list[bytes]:
        """Return the events since the last call, in pieces of whole events."""
        pieces, self._seq = self._read(self._seq, self._about)
        beat, self._beat = self._beat, b""
        return [*pieces, beat] if beat else pieces

    def wake(self) -> None:
        """Make `news` return."""
        self._news.set()

    def beat(self, event: bytes) -> None:
        """Keep this beat for the next `take`; it replaces a beat that was not taken."""
        self._beat = event
        self._news.set()


class EventWatch:
    """Source of the events of functions, replicas, devices, hosts and their occurrences. It reads
    no state while there are no followers. `server` has the facts of the server; `clock` returns
    seconds.

    Not thread-safe. A function's event follows its change within UPDATE_S, its rates each second.
    """

    def __init__(
        self,
        reader: StateReader,
        catalog: Catalog,
        server: ServerFacts,
        clock: Callable[[], float],
    ) -> None:
        self._reader = reader
        self._catalog = catalog
        self._server = server
        self._clock = clock
        self._boot = secrets.token_hex(4)
        self._log = EventLog()
        self._sent = SentState()
        self._recent: deque[tuple[str, str, bytes]] = deque(maxlen=RECENT_MAX)
        self._last_read: tuple[tuple[int, int, str], list[bytes]] = ((0, 0, ""), [])
        self._dirty: dict[str, None] = {}
        self._round = 0
        self._busy: set[str] = set()
        self._followers: set[Follower] = set()
        self._left_s = 0.0
        self._is_watching = False
        self._is_whole = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._unsubscribe = catalog.subscribe(self._on_change)

    @property
    def followers(self) -> int:
        """Number of followers."""
        return len(self._followers)

    def close(self) -> None:
        """Stop producing events."""
        self._is_closed = True
        self._unsubscribe()
        self._cancel_timer()

    def record(self, kind: str, about: str, data: ServerEvent) -> None:
        """Record an occurrence: a decision, a cold start, an error, a change of a host or a step of
        an operation."""
        encoded = encode(data)
        self._recent.append((kind, about, encoded))
        if self._is_watching:
            self._add(kind, about, encoded)

    def refresh(self) -> None:
        """Read replicas, devices and hosts again soon."""
        if self._is_watching:
            self._schedule(UPDATE_S)

    def pools(self, endpoints: bytes) -> None:
        """Mark the functions of these pools as changed (`endpoints`: the manager's message)."""
        if self._is_watching:
            self._mark_dirty(function_of(pool) for pool in decode_endpoints(endpoints).pools)

    def function(self, name: str) -> None:
        """Mark a function as changed."""
        if self._is_watching:
            self._mark_dirty([name])

    @contextmanager
    def follow(self, last: Position | None, about: str) -> Iterator[Follower]:
        """Follow events while the block runs: those after `last`, or the whole state and then all
        events; only those of the function `about` if given."""
        if not self._is_watching:
            self._start()
        seq = last.seq if last is not None and last.boot == self._boot else -1
        follower = Follower(self._read, seq, about)
        if self._is_whole:
            follower.beat(self._beat())
        self._followers.add(follower)
        try:
            yield follower
        finally:
            self._followers.discard(follower)
            self._left_s = self._clock()

    def _start(self) -> None:
        self._is_watching = True
        self._is_whole = False
        self._left_s = self._clock()
        self.tick()
        self._mark_dirty(one.function.name for one in self._catalog.all())

    def _stop(self) -> None:
        self._is_watching = False
        self._cancel_timer()
        self._last_read = ((0, 0, ""), [])
        self._dirty.clear()
        self._round = 0
        self._busy.clear()
        self._sent.clear()
        self._log.clear()

    def _read(self, seq: int, about: str) -> tuple[list[bytes], int]:
        """Return the events after `seq`, in pieces, and the number of the last one."""
        now = self._log.seq
        if not self._is_whole or seq == now:
            return [], seq
        asked = seq, now, about
        # Cached: all followers woken together, and all that join after a start, ask the same.
        if self._last_read[0] != asked:
            self._last_read = asked, pieces(self._events(seq, about))
        return self._last_read[1], now

    def _events(self, seq: int, about: str) -> Iterable[bytes]:
        news = self._log.after(seq)
        if news is not None:
            return frames(news, self._boot, about)
        return self._snapshot("from the beginning" if seq < 0 else "too old", about)

    def _snapshot(self, reason: str, about: str) -> Iterator[bytes]:
        """Yield the whole state and the latest occurrences."""
        yield frame("reset", encode(ResetEvent(reason, self._server)))
        for kind in KINDS:
            yield from listing(kind, self._sent.all(kind, about))
        for kind, name, data in self._recent:
            if not about or name in ("", about):
                yield frame(kind, data)
        yield frame("ready", encode(ReadyEvent()), str(Position(self._boot, self._log.seq)))

    def _on_change(self, change: Change) -> None:
        if self._is_watching and change.namespace == NAMESPACE:
            self._mark_dirty([change.name])

    def _mark_dirty(self, names: Iterable[str]) -> None:
        self._dirty.update(dict.fromkeys(names))
        self._schedule(UPDATE_S)

    def _schedule(self, seconds: float) -> None:
        if self._timer is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self._update_or_log)

    def tick(self) -> None:
        """Update functions that have, or had, a rate or a load. Call once per second."""
        self._reader.tick()
        if not self._is_watching:
            return
        if not self._followers and self._clock() - self._left_s > LINGER_S:
            self._stop()
            return
        before, self._busy = self._busy, self._reader.busy_functions()
        self._mark_dirty(before | self._busy)
        self._schedule(UPDATE_S)
        beat = self._beat()
        for follower in self._followers:
            follower.beat(beat)

    def _beat(self) -> bytes:
        return frame("beat", encode(self._reader.beat()))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _update_or_log(self) -> None:
        self._timer = None
        try:
            self._update()
        except Exception:  # the next update may succeed
            log.exception("events could not be made")
        if self._dirty:
            self._schedule(BATCH_GAP_S)

    def _update(self) -> None:
        # A round covers the functions that are dirty when it begins. Later ones queue behind them,
        # so a round ends however many functions are busy.
        self._round = self._round or len(self._dirty)
        names = list(islice(self._dirty, min(self._round, FUNCTIONS_PER_BATCH)))
        for name in names:
            del self._dirty[name]
        self._round -= len(names)
        self._update_functions(names)
        if not self._round:
            self._update_kind("hosts", self._reader.hosts())
            self._update_kind("replicas", self._reader.replicas())
            self._update_kind("devices", self._reader.devices())
            self._is_whole = True
        for follower in self._followers:
            follower.wake()

    def _update_functions(self, names: list[str]) -> None:
        there, gone = self._reader.functions(names)
        for one in there:
            if self._sent.update("functions", one):
                self._log.add("functions", one.about, one.data)
        for one in self._sent.remove("functions", gone):
            self._log.add("gone", one.about, _gone("functions", one.id))

    def _update_kind(self, kind: str, things: Iterable[Item]) -> None:
        ids = set()
        for one in things:
            ids.add(one.id)
            if self._sent.update(kind, one):
                self._log.add(kind, one.about, one.data)
        for one in self._sent.remove_except(kind, ids):
            self._log.add("gone", one.about, _gone(kind, one.id))

    def _add(self, kind: str, about: str, data: bytes) -> None:
        self._log.add(kind, about, data)
        self._schedule(UPDATE_S)


def _gone(kind: str, id: str) -> bytes:
    return encode(GoneEvent(**{"functions": [], "replicas": [], kind: [id]}))
