"""A gateway in the server's own process, over memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from admin.workers.link import Door
from admin.workers.messages import Welcome
from admin.workers.node import GatewayNode, Others, Place
from admin.workers.shared_counters import CounterReader
from admin.workers.statistics import RECORDS_MAX
from admin.workers.stream import Stream, memory_pair
from registry.tasks import Tasks

Pair = Callable[[], tuple[Stream, Stream]]
"""Makes the server's and the gateway's end of a stream."""


class ServerProcess(Place):
    """The server's process, which is prepared already."""

    def __init__(self, others: Others) -> None:
        """`others` are the server's routes."""
        self._others = others

    def open(self, welcome: Welcome) -> Others:  # noqa: ARG002 - the protocol
        """Implement `Place.open`."""
        return self._others

    def on_ready(self) -> None:
        """Implement `Place.on_ready`."""

    def tasks(self) -> int:
        """Implement `Place.tasks`."""
        return 0


class MemoryDoor(Door):
    """Streams within the process. There is no end: the server ends its gateway."""

    def __init__(self) -> None:
        self._streams: asyncio.Queue[Stream] = asyncio.Queue()

    def put(self, stream: Stream) -> None:
        """Pass the gateway a stream."""
        self._streams.put_nowait(stream)

    async def next(self) -> Stream | None:
        """Implement `Door.next`."""
        return await self._streams.get()


class LocalGateway:
    """Gateway as a part of the server's process; counters are where those of a process are."""

    def __init__(self, place: Place, pair: Pair) -> None:
        self.counters = CounterReader(is_shared=False)
        self.revisions = CounterReader(RECORDS_MAX, is_shared=False)
        self._door, self._pair = MemoryDoor(), pair
        self.node = GatewayNode(
            self._door,
            self.counters.writer(),
            self.revisions.writer(),
            place,
        )
        self._tasks = Tasks("gateway process")
        self._run = self._tasks.spawn("run", self.node.run())

    @classmethod
    async def start(cls, others: Others, pair: Pair = memory_pair) -> LocalGateway:
        """Start a gateway; `others` are the server's routes."""
        return cls(ServerProcess(others), pair)

    @property
    def name(self) -> str:
        """Name in messages: the pid."""
        return str(os.getpid())

    def connect(self) -> Stream:
        """Implement `GatewayProcess.connect`."""
        if self._run.done():
            raise BrokenPipeError("this gateway has ended")
        ours, theirs = self._pair()
        self._door.put(theirs)
        return ours

    def kill(self) -> None:
        """Implement `GatewayProcess.kill`."""
        self._run.cancel()

    async def wait(self) -> str:
        """Implement `GatewayProcess.wait`."""
        await asyncio.wait([self._run])
        await self._tasks.close()
        return "was ended" if self._run.cancelled() else "ended"
