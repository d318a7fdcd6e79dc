"""Load of event streams: opens many at once, counts their events, and measures their delay.

`python -m benchmarks.loading.streams PLAN.json` prints one line of JSON, see `Streamed`. Events
carry the monotonic clock's nanoseconds of their sending, which is one clock for the whole machine.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.loading.generator import Refused, execute
from benchmarks.measuring.record import percentile

OK = b"HTTP/1.1 200"
LAST = b"data: [DONE]"
AT = b'"at":'
AT_ONCE = 50
"""Streams that are opened at once, so that no listen queue overflows."""
GRACE_S = 120.0


@dataclass(frozen=True, slots=True)
class Streams:
    """A load: `count` streams of `events` events each, one in `period_ms`."""

    port: int
    path: str
    count: int
    events: int
    period_ms: int
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Duration of one stream, at least."""
        return self.events * self.period_ms / 1e3

    def request(self) -> bytes:
        """Encode the request of one stream."""
        heads = {"Host": f"127.0.0.1:{self.port}", "Accept": "text/event-stream", **self.headers}
        target = f"{self.path}?n={self.events}&ms={self.period_ms}"
        lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in heads.items())]
        return "\r\n".join([*lines, "", ""]).encode()


@dataclass(frozen=True, slots=True)
class Streamed:
    """Result of a load. `whole`: streams with all their events and their end."""

    whole: int
    events: int
    p50_ms: float
    p99_ms: float


class Stream(asyncio.Protocol):
    """One stream. `ended` gets the number of events, -1 for a stream that is not whole."""

    def __init__(self, plan: Streams, delays_ms: array[float]) -> None:
        self._plan = plan
        self._delays_ms = delays_ms
        self._events = 0
        self._rest = b""
        self._is_begun = False
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio callback: send the request."""
        self._transport: Any = transport
        self._transport.write(self._plan.request())

    def data_received(self, data: bytes) -> None:
        """asyncio callback: count events; an event ends with an empty line."""
        now_ns = time.monotonic_ns()
        if not self._is_begun and not data.startswith(OK):
            self._end(-1)
        self._is_begun = True
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            sent = event.rpartition(AT)[2]
            if sent.endswith(b"}") and sent[:-1].isdigit():
                self._events += 1
                self._delays_ms.append((now_ns - int(sent[:-1])) / 1e6)
            elif event.endswith(LAST):
                is_whole = self._events == self._plan.events
                self._end(self._events if is_whole else -1)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """asyncio callback: a stream that ends early is not whole."""
        self._end(-1)

    def _end(self, events: int) -> None:
        if not self.ended.done():
            self.ended.set_result(events)
            self._transport.close()


async def load(plan: Streams) -> Streamed:
    """Open all streams and wait for their ends."""
    loop = asyncio.get_running_loop()
    delays_ms: array[float] = array("d")
    streams: list[Stream] = []
    while len(streams) < plan.count:
        made = min(AT_ONCE, plan.count - len(streams))
        async with asyncio.TaskGroup() as group:
            opened = [
                group.create_task(
                    loop.create_connection(lambda: Stream(plan, delays_ms), "127.0.0.1", plan.port)
                )
                for _ in range(made)
            ]
        streams += [task.result()[1] for task in opened]
    async with asyncio.timeout(plan.seconds + GRACE_S):
        ends = [await stream.ended for stream in streams]
    delays = list(delays_ms)
    return Streamed(
        whole=sum(end >= 0 for end in ends),
        events=len(delays),
        p50_ms=percentile(delays, 0.5),
        p99_ms=percentile(delays, 0.99),
    )


def figures(process: subprocess.Popen[str], plan: Streams) -> Streamed:
    """Wait for the end of a load. Raises Refused unless every stream was whole."""
    output, complaint = process.communicate(timeout=plan.seconds + 2 * GRACE_S)
    if process.returncode:
        raise Refused(f"the streams ended with {process.returncode}: {complaint[-500:]}")
    found = Streamed(**json.loads(output))
    if found.whole != plan.count:
        raise Refused(f"{found.whole} of {plan.count} streams of {plan.path} were whole")
    return found


if __name__ == "__main__":
    execute(Path(sys.argv[1]), Streams, load)
