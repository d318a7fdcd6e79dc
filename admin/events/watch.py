"""Looks at what is, and tells watchers what is new."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import structlog

from admin.events.follower import Follower
from admin.events.frames import Position, frame, frames
from admin.events.picture import Picture, Thing
from admin.events.ring import News, Ring
from admin.events.scene import Scene, function_of
from registry.catalog import Catalog, Change
from registry.errors import QueueFull, ShuttingDown
from registry.exchange import decode_endpoints
from registry.model import NAMESPACE
from registry.tasks import Tasks, every

log = structlog.get_logger()

FOLLOWERS_MAX: Final = 100
LOOK_S: Final = 0.1
"""What changes several times within this is told once."""
FUNCTIONS_AT_ONCE: Final = 50
"""Looked at in one turn of the loop, which has calls to answer, too; others follow GAP_S later."""
GAP_S: Final = 0.01
LINGER_S: Final = 30.0
"""What happens goes on being noted for so long after the last follower has left: he may return."""
RECENT_MAX: Final = 100

encode = msgspec.json.Encoder().encode


class Watch:
    """News of functions, replicas, devices and what happens to them. While nobody follows, nothing
    is looked at. `server` is what a follower is told of the server; `clock` gives seconds.

    One thread. A function's state is told within LOOK_S of its change, numbers each second.
    """

    def __init__(
        self, scene: Scene, catalog: Catalog, server: dict[str, Any], clock: Callable[[], float]
    ) -> None:
        self._scene = scene
        self._catalog = catalog
        self._server = server
        self._clock = clock
        self._boot = secrets.token_hex(4)
        self._ring = Ring()
        self._picture = Picture()
        self._recent: deque[tuple[str, str, bytes]] = deque(maxlen=RECENT_MAX)
        self._beat = b""
        self._dirty: dict[str, None] = {}
        self._busy: set[str] = set()
        self._followers: set[Follower] = set()
        self._left_s = 0.0
        self._is_watching = False
        self._is_whole = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks("events")
        self._is_closed = False
        self._unsubscribe = catalog.subscribe(self._changed)

    @property
    def followers(self) -> int:
        """How many follow."""
        return len(self._followers)

    def open(self) -> None:
        """Begin to look, once a second while somebody follows."""
        self._tasks.spawn("second", every(1.0, self.second))

    async def stop_waiting(self, _app: object = None) -> None:
        """aiohttp's shutdown signal: who follows is let go."""
        self._is_closed = True
        for follower in self._followers:
            follower.close()

    async def close(self) -> None:
        """Look no more."""
        await self.stop_waiting()
        self._unsubscribe()
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()

    def happened(self, kind: str, about: str, data: Any) -> None:
        """Something that is over: a decision, a cold start, an error, a step of an operation."""
        encoded = encode(data)
        self._recent.append((kind, about, encoded))
        if self._is_watching:
            self._add(kind, about, encoded)

    def pools(self, endpoints: bytes) -> None:
        """The manager's Endpoints: these pools look different."""
        if self._is_watching:
            self._touch(function_of(pool) for pool in decode_endpoints(endpoints).pools)

    def follow(self, last: Position | None, about: str) -> Follower:
        """Follow from behind `last` on, or from a whole picture; of one function alone if `about`
        names one. Raises QueueFull, ShuttingDown."""
        if self._is_closed:
            raise ShuttingDown("the server is shutting down", retry_after_s=5)
        if len(self._followers) >= FOLLOWERS_MAX:
            text = f"{FOLLOWERS_MAX} follow the events already"
            raise QueueFull(text, retry_after_s=10)
        if not self._is_watching:
            self._begin()
        seq = last.seq if last is not None and last.boot == self._boot else -1
        follower = Follower(self._read, self._left, seq, about)
        self._followers.add(follower)
        return follower

    def _left(self, follower: Follower) -> None:
        self._followers.discard(follower)
        self._left_s = self._clock()

    def _begin(self) -> None:
        self._is_watching = True
        self._is_whole = False
        self._left_s = self._clock()
        self.second()
        self._touch(one.function.name for one in self._catalog.all())

    def _end(self) -> None:
        self._is_watching = False
        self._dirty.clear()
        self._busy.clear()
        self._picture.clear()
        self._ring.clear()

    def _read(self, seq: int, about: str) -> tuple[bytes, int]:
        """What whoever has read up to `seq` is to be told, and up to where he has read then."""
        if not self._is_whole:
            return b"", seq
        news = self._ring.after(seq)
        if news is not None:
            return b"".join(frames(news, self._boot, about)), self._ring.seq
        return self._snapshot("from the beginning" if seq < 0 else "too old", about), self._ring.seq

    def _snapshot(self, reason: str, about: str) -> bytes:
        """Everything as it is now, and what happened last."""
        seq = self._ring.seq
        at = str(Position(self._boot, seq))
        things = [News(seq, kind, one.about, one.data) for kind, one in self._picture.all()]
        events = [News(seq, kind, name, data) for kind, name, data in self._recent]
        return b"".join(
            [
                frame("reset", encode({"reason": reason, "server": self._server})),
                *frames(things, self._boot, about),
                *frames(events, self._boot, about),
                frame("ready", b"{}", at),
            ]
        )

    def _changed(self, change: Change) -> None:
        if self._is_watching and change.namespace == NAMESPACE:
            self._touch([change.name])

    def _touch(self, names: Iterable[str]) -> None:
        self._dirty.update(dict.fromkeys(names))
        self._soon(LOOK_S)

    def _soon(self, seconds: float) -> None:
        if self._timer is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self._look)

    def second(self) -> None:
        """What has a rate or a load may have another one now, what had one none."""
        self._scene.pulse()
        if not self._is_watching:
            return
        if not self._followers and self._clock() - self._left_s > LINGER_S:
            self._end()
            return
        before, self._busy = self._busy, self._scene.busy()
        self._touch(before | self._busy)
        self._soon(LOOK_S)
        self._beat = frame("beat", encode(self._scene.beat()))
        for follower in self._followers:
            follower.beat(self._beat)

    def _look(self) -> None:
        self._timer = None
        try:
            self._look_on()
        except Exception:  # the next look may go well
            log.exception("events could not be made")
        if self._dirty:
            self._soon(GAP_S)

    def _look_on(self) -> None:
        names = list(self._dirty)[:FUNCTIONS_AT_ONCE]
        for name in names:
            del self._dirty[name]
        self._tell_functions(names)
        if not self._dirty:
            self._tell_all("replicas", self._scene.replicas())
            self._tell_all("devices", self._scene.devices())
            self._is_whole = True
        for follower in self._followers:
            follower.wake()

    def _tell_functions(self, names: list[str]) -> None:
        there, gone = self._scene.functions(names)
        for one in there:
            if self._picture.differs("functions", one):
                self._ring.add("functions", one.about, one.data)
        for one in self._picture.gone("functions", gone):
            self._ring.add("gone", one.about, encode({"functions": [one.id], "replicas": []}))

    def _tell_all(self, kind: str, things: Iterable[Thing]) -> None:
        ids = set()
        for one in things:
            ids.add(one.id)
            if self._picture.differs(kind, one):
                self._ring.add(kind, one.about, one.data)
        for one in self._picture.gone_but(kind, ids):
            if kind == "replicas":
                self._ring.add("gone", one.about, encode({"functions": [], "replicas": [one.id]}))

    def _add(self, kind: str, about: str, data: bytes) -> None:
        self._ring.add(kind, about, data)
        self._soon(LOOK_S)
