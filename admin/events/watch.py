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
"""What changes several times within this is told once."""
FUNCTIONS_PER_BATCH: Final = 50
"""Looked at in one turn of the loop, which has calls to answer, too; others follow GAP_S later."""
BATCH_GAP_S: Final = 0.01
LINGER_S: Final = 30.0
"""What happens goes on being noted for so long after the last follower has left: he may return."""
RECENT_MAX: Final = 100
encode = msgspec.json.Encoder().encode


class Follower:
    """Wait for `news`, then `take` what is to be sent: a follower that is slow gets what is there
    when he asks, and a whole picture where too much has passed."""

    def __init__(self, read: Read, seq: int, about: str) -> None:
        """`read(seq, about)` gives what came after `seq`, in pieces, and the new number."""
        self._read = read
        self._seq = seq
        self._about = about
        self._beat = b""
        self._news = asyncio.Event()
        self._news.set()

    async def news(self) -> None:
        """Return when there is something to take."""
        await self._news.wait()
        self._news.clear()

    def take(self) -> list[bytes]:
        """Events to send now, in pieces of whole ones; none are left out."""
        pieces, self._seq = self._read(self._seq, self._about)
        beat, self._beat = self._beat, b""
        return [*pieces, beat] if beat else pieces

    def wake(self) -> None:
        """There is something to take."""
        self._news.set()

    def beat(self, event: bytes) -> None:
        """A second has passed; of several that were not taken only the last counts."""
        self._beat = event
        self._news.set()


class EventWatch:
    """News of functions, replicas, devices and what happens to them. While nobody follows, nothing
    is looked at. `server` is what a follower is told of the server; `clock` gives seconds.

    One thread. A function's state is told within LOOK_S of its change, numbers each second.
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
        """How many follow."""
        return len(self._followers)

    def close(self) -> None:
        """Make no more events."""
        self._is_closed = True
        self._unsubscribe()
        self._cancel_timer()

    def record(self, kind: str, about: str, data: Any) -> None:
        """Something that is over: a decision, a cold start, an error, a step of an operation."""
        encoded = encode(data)
        self._recent.append((kind, about, encoded))
        if self._is_watching:
            self._add(kind, about, encoded)

    def pools(self, endpoints: bytes) -> None:
        """The manager's Endpoints: these pools look different."""
        if self._is_watching:
            self._mark_dirty(function_of(pool) for pool in decode_endpoints(endpoints).pools)

    @contextmanager
    def follow(self, last: Position | None, about: str) -> Iterator[Follower]:
        """Follow while the block runs, from behind `last` on, or from a whole picture; of one
        function alone if `about` names one."""
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
        """What whoever has read up to `seq` is to be told, and up to where he has read then."""
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
        """Everything as it is now, and what happened last."""
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
        """What has a rate or a load may have another one now, what had one none."""
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
