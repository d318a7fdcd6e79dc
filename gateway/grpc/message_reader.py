"""The only place that takes a message from gRPC: each has its room and its clock before.

A read opens HTTP/2's window for as many bytes as the message says it has, up to the largest one of
the server. So many are reserved first; after the read the message has its real size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

import grpc

from gateway.grpc.read_queue import WAIT_S, ReadQueue
from gateway.http.reservations import BodyBudget, BodyReservation
from registry.errors import (
    BadRequest,
    BodyEvicted,
    BodyTimeout,
    BodyTooLarge,
    FnError,
    QueueFull,
)

TICK_S: Final = 0.05
"""Seconds between two looks for room while reads wait: calls and other bodies give theirs back
without a word."""
SWEEP_S: Final = 0.25
"""Seconds between two looks for reads whose time is over, while any lasts: one timer for all."""
LARGE: Final = 2**20
"""Bytes of a message after whose copy other tasks run before it is looked at."""
RETRY_S: Final = 1.0


class MessageRead(BodyReservation):
    """A read, which is its own reservation: no cycle for the garbage collector.

    `party`, `since_s` and `within_s` as in `PendingRead`. `granted` is done when it gets room,
    `failure` says why it lost that.
    """

    __slots__ = ("failure", "granted", "party", "since_s", "task", "within_s")

    def __init__(self, party: str, within_s: float, budget: BodyBudget, now: float) -> None:
        super().__init__(budget, _unused, now)
        self.party = party
        self.since_s = now
        self.within_s = within_s
        self.task: asyncio.Task[Any] | None = None
        self.failure: FnError | None = None
        self.granted: asyncio.Future[None] | None = None

    def evict(self, error: FnError) -> None:
        """End the read: its room is needed, or its time is over."""
        if self.failure is None:
            self.failure = error
            if self.task is not None:
                self.task.cancel()


def _unused(_error: FnError) -> None:
    """Stand for the callback that `evict` replaces."""


class MessageReader:
    """Reads messages with room of `budget`. Event loop thread only.

    `room`: bytes for each read, which is the server's largest message. `patience_s` as in
    `ReadQueue`.
    """

    def __init__(
        self,
        budget: BodyBudget,
        room: int,
        patience_s: float,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._budget = budget
        self._room = room
        self._clock = clock
        self._queue: ReadQueue[MessageRead] = ReadQueue(patience_s)
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Look for room no more."""
        if self._timer is not None:
            self._timer.cancel()

    async def read(self, context: Any, party: str, most: int, within_s: float) -> bytes | None:
        """Return the next message, None if the client sends no more.

        `most`: max bytes of it; `within_s`: seconds that it may take from when it has room. Raises
        FnError.
        """
        read = MessageRead(party, within_s, self._budget, self._clock())
        if self._queue or not self._budget.try_grow(read, self._room):
            await self._wait(read)
        else:
            self._begin(read, read.since_s)
        read.task = task = asyncio.current_task()
        try:
            if read.failure is not None:
                raise read.failure
            data = await context.read()
            if data is grpc.aio.EOF:
                return None
            if len(data) > LARGE:
                await asyncio.sleep(0)
        except grpc.aio.BaseError:
            raise BadRequest("the message did not arrive as a whole") from None
        except asyncio.CancelledError:
            if read.failure is None or task is None or task.uncancel():
                raise  # the client left
            raise read.failure from None
        finally:
            read.release()
            self._queue.end(read)
            if self._queue:
                self._grant()
        if len(data) > most:
            raise BodyTooLarge(f"expected a message of at most {most} bytes, got {len(data)}")
        return bytes(data)

    def _begin(self, read: MessageRead, now: float) -> None:
        self._queue.begin(read, now)
        if self._timer is None:
            self._set_timer(SWEEP_S)

    async def _wait(self, read: MessageRead) -> None:
        """Wait until a read has room. Raises QueueFull."""
        read.granted = asyncio.get_running_loop().create_future()
        self._queue.wait(read)
        self._set_timer(TICK_S)
        try:
            await read.granted
        except asyncio.CancelledError:
            if read.granted.cancelled():
                self._queue.forget(read)
            elif read.granted.exception() is None:
                read.release()
                self._queue.end(read)
            raise

    def _grant(self) -> None:
        """Give room to reads that wait, as far as it goes."""
        while (read := self._queue.first()) is not None:
            granted = read.granted
            assert granted is not None
            if granted.cancelled():  # its client left in this iteration of the loop
                self._queue.forget(read)
                continue
            if not self._budget.try_grow(read, self._room):
                return
            self._queue.forget(read)
            self._begin(read, self._clock())
            granted.set_result(None)

    def _tick(self) -> None:
        now = self._clock()
        for read in self._queue.overdue(now):
            self._queue.forget(read)
            if read.granted is not None and not read.granted.cancelled():
                text = f"no room for a message of {self._room} bytes within {WAIT_S:g} s"
                read.granted.set_exception(QueueFull(text, retry_after_s=RETRY_S))
        for read in self._queue.late(now):
            text = f"the message did not arrive within {read.within_s:g} s"
            read.evict(BodyTimeout(text))
        if self._queue.is_impatient(now):
            self._press(now)
        self._grant()
        self._timer = None
        if self._queue:
            self._set_timer(TICK_S)
        elif self._queue.has_room:
            self._set_timer(SWEEP_S)

    def _set_timer(self, seconds: float) -> None:
        """Tick in so many seconds, or when it was to be if that is earlier."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + seconds:
                return
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._tick)

    def _press(self, now: float) -> None:
        """End the slowest read, or, if there is none, the slowest uploads over HTTP."""
        slowest = self._queue.slowest(now)
        if slowest is not None:
            slowest.release()
            text = "the message makes others wait that want its room"
            slowest.evict(BodyEvicted(text, retry_after_s=RETRY_S))
        elif not self._queue.has_room:
            self._budget.make_room(self._room)
