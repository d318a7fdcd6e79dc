"""Events for followers: what differs from the state that was sent before, and what happened."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

import msgspec
import structlog

from admin.events.log import KINDS, EventLog, Item, SentState
from admin.events.snapshot import StateReader, function_of
from admin.events.sse import Position, frame, frames, listing, pieces
from registry.catalog import Catalog, Change
from registry.exchange import decode_endpoints
from registry.model import NAMESPACE

Read = Callable[[int, str], tuple[list[bytes], int]]

log = structlog.get_logger()
UPDATE_S: Final = 0.1
"""Several changes of an item within this many seconds are one event."""
FUNCTIONS_PER_BATCH: Final = 50
"""Functions read in one turn of the loop, which also answers calls; the next batch follows
BATCH_GAP_S later."""
BATCH_GAP_S: Final = 0.01
LINGER_S: Final = 30.0
"""Seconds for which events are recorded after the last follower has left: it may return."""
RECENT_MAX: Final = 100
encode = msgspec.json.Encoder().encode


class Follower:
    """One client of the events: wait for `news`, then `take` them. A slow follower gets what there
    is when it takes, and the whole state where it has missed too much."""

    def __init__(self, read: Read, seq: int, about: str) -> None:
        """`read(seq, about)` gives the events after `seq`, in pieces, and the new number."""
        self._read = read
        self._seq = seq
        self._about = about
        self._beat = b""
        self._news = asyncio.Event()
        self._news.set()

    async def news(self) -> None:
        """Return when there are events to take."""
        await self._news.wait()
        self._news.clear()

    def take(self) -> list[bytes]:
        """The events since the last call, in pieces of whole ones."""
        pieces, self._seq = self._read(self._seq, self._about)
        beat, self._beat = self._beat, b""
        return [*pieces, beat] if beat else pieces

    def wake(self) -> None:
        """Have `news` return."""
        self._news.set()

    def beat(self, event: bytes) -> None:
        """Keep this beat for the next `take`, in place of one that was not taken."""
        self._beat = event
        self._news.set()


class EventWatch:
    """Makes the events of functions, replicas, devices and what happens to them. Without followers
    it reads nothing. `server` has the facts of the server; `clock` gives seconds.

    For one thread. A function's event follows its change within UPDATE_S, its rates each second.
    """

    def __init__(
        self,
        reader: StateReader,
        catalog: Catalog,
        server: dict[str, Any],
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
        """The number of followers."""
        return len(self._followers)

    def close(self) -> None:
        """Make no more events."""
        self._is_closed = True
        self._unsubscribe()
        self._cancel_timer()

    def record(self, kind: str, about: str, data: Any) -> None:
        """Record something that has happened: a decision, a cold start, an error, a step of an
        operation."""
        encoded = encode(data)
        self._recent.append((kind, about, encoded))
        if self._is_watching:
            self._add(kind, about, encoded)

    def pools(self, endpoints: bytes) -> None:
        """Mark the functions of these pools as changed; the manager's Endpoints."""
        if self._is_watching:
            self._mark_dirty(function_of(pool) for pool in decode_endpoints(endpoints).pools)

    @contextmanager
    def follow(self, last: Position | None, about: str) -> Iterator[Follower]:
        """A follower while the block runs: of the events after `last`, or of the whole state and
        then all events; only those of one function if `about` names one."""
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
        """The events after `seq`, in pieces, and the number of the last one."""
        now = self._log.seq
        if not self._is_whole or seq == now:
            return [], seq
        asked = seq, now, about
        # Many ask for the same: all that were woken, all that come after a start.
        if self._last_read[0] != asked:
            self._last_read = asked, pieces(self._events(seq, about))
        return self._last_read[1], now

    def _events(self, seq: int, about: str) -> Iterable[bytes]:
        news = self._log.after(seq)
        if news is not None:
            return frames(news, self._boot, about)
        return self._snapshot("from the beginning" if seq < 0 else "too old", about)

    def _snapshot(self, reason: str, about: str) -> Iterator[bytes]:
        """The whole state, and what happened last."""
        yield frame("reset", encode({"reason": reason, "server": self._server}))
        for kind in KINDS:
            yield from listing(kind, self._sent.all(kind, about))
        for kind, name, data in self._recent:
            if not about or name in ("", about):
                yield frame(kind, data)
        yield frame("ready", b"{}", str(Position(self._boot, self._log.seq)))

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
        """Update the functions that have, or had, a rate or a load; to be called each second."""
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
        except Exception:  # the next look may go well
            log.exception("events could not be made")
        if self._dirty:
            self._schedule(BATCH_GAP_S)

    def _update(self) -> None:
        # A round are those that are to be looked at when it begins. What comes to be meanwhile is
        # behind them, so a round ends however many are busy.
        self._round = self._round or len(self._dirty)
        names = list(islice(self._dirty, min(self._round, FUNCTIONS_PER_BATCH)))
        for name in names:
            del self._dirty[name]
        self._round -= len(names)
        self._update_functions(names)
        if not self._round:
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
            self._log.add("gone", one.about, encode({"functions": [one.id], "replicas": []}))

    def _update_kind(self, kind: str, things: Iterable[Item]) -> None:
        ids = set()
        for one in things:
            ids.add(one.id)
            if self._sent.update(kind, one):
                self._log.add(kind, one.about, one.data)
        for one in self._sent.remove_except(kind, ids):
            if kind == "replicas":
                self._log.add("gone", one.about, encode({"functions": [], "replicas": [one.id]}))

    def _add(self, kind: str, about: str, data: bytes) -> None:
        self._log.add(kind, about, data)
        self._schedule(UPDATE_S)
