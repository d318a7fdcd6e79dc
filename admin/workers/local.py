"""A gateway in the server's own process, over memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from admin.workers.node import GatewayNode, Place
from admin.workers.shared_counters import OwnCounters
from admin.workers.stream import Stream, memory_pair
from registry.tasks import Tasks

Pair = Callable[[], tuple[Stream, Stream]]
"""Makes the server's and the gateway's end of a stream."""


class LocalGateway:
    """Gateway as a part of the server's process."""

    def __init__(self, place: Place, pair: Pair) -> None:
        self.counters, self.revisions = OwnCounters(), OwnCounters()
        self._pair = pair
        self._streams: asyncio.Queue[Stream] = asyncio.Queue()
        """The gateway's door. It has no end: the server ends its gateway."""
        self.node = GatewayNode(self._streams.get, self.counters, self.revisions, place)
        self._tasks = Tasks("gateway process")
        self._run = self._tasks.spawn("run", self.node.run())

    @classmethod
    async def start(cls, place: Place, pair: Pair = memory_pair) -> LocalGateway:
        """Start a gateway; `place` is the server's process."""
        return cls(place, pair)

    @property
    def name(self) -> str:
        """Name in messages: the pid."""
        return str(os.getpid())

    def connect(self) -> Stream:
        """Implement `GatewayProcess.connect`."""
        if self._run.done():
            raise BrokenPipeError("this gateway has ended")
        ours, theirs = self._pair()
        self._streams.put_nowait(theirs)
        return ours

    def kill(self) -> None:
        """Implement `GatewayProcess.kill`."""
        self._run.cancel()

    async def wait(self) -> str:
        """Implement `GatewayProcess.wait`."""
        await asyncio.wait([self._run])
        await self._tasks.close()
        return "was ended" if self._run.cancelled() else "ended"
