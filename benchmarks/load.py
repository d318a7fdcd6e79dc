"""Load generator: calls one server over many connections and prints the result, in a process.

`python -m benchmarks.load PLAN.json`; `benchmarks/loading/generator.py` writes the plan. The result
is one line of JSON, see `Loaded`.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.loading.call import Loaded
from benchmarks.measuring.record import percentile

HEAD_MAX = 65_536
"""Max bytes of an answer's head; no measured server sends a longer one."""


@dataclass
class Tally:
    """Results of all connections of one load. Times are perf_counter seconds."""

    request: bytes
    each: int
    """Calls per connection; 0: repeat until `until_s`."""
    until_s: float = 0.0
    taken_s: array[float] = field(default_factory=lambda: array("d"))
    ended_s: array[float] = field(default_factory=lambda: array("d"))
    errors: int = 0

    def goes_on(self, done: int, now_s: float) -> bool:
        """Whether a connection makes another call after `done` answers."""
        return done < self.each if self.each else now_s < self.until_s


class Caller(asyncio.Protocol):
    """One keep-alive connection, which sends the next request after each answer."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._head = b""
        self._body_left = -1
        """Bytes of the body not yet received; -1 while the head is incomplete."""
        self._done = 0
        self._good = True
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio callback: keep the transport; `call` sends the first request."""
        self._transport: Any = transport

    def call(self) -> None:
        """Send one request."""
        self._sent_s = time.perf_counter()
        self._transport.write(self._tally.request)

    def data_received(self, data: bytes) -> None:
        """asyncio callback: count received bytes; Content-Length delimits answers."""
        if self._body_left < 0:
            self._head += data
            head, found, rest = self._head.partition(b"\r\n\r\n")
            if not found:
                if len(self._head) > HEAD_MAX:
                    self._fail()
                return
            self._head = b""
            self._good = head.startswith(b"HTTP/1.1 2")
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            self._body_left = int(length) - len(rest)
        else:
            self._body_left -= len(data)
        if self._body_left <= 0:
            self._answered()

    def _answered(self) -> None:
        self._body_left = -1
        now_s, tally = time.perf_counter(), self._tally
        if self._good:
            tally.taken_s.append(now_s - self._sent_s)
            tally.ended_s.append(now_s)
        else:
            tally.errors += 1
        self._done += 1
        if tally.goes_on(self._done, now_s):
            self.call()
        else:
            self._end()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """asyncio callback: a connection that breaks during a call counts as an error."""
        if not self.ended.done():
            self._fail()

    def _fail(self) -> None:
        self._tally.errors += 1
        self._end()

    def _end(self) -> None:
        self.ended.set_result(None)
        self._transport.close()


async def load(port: int, connections: int, seconds: float, tally: Tally) -> Loaded:
    """Open all connections, then start calling on all of them at once."""
    loop = asyncio.get_running_loop()
    callers = []
    for _ in range(connections):
        _, caller = await loop.create_connection(lambda: Caller(tally), "127.0.0.1", port)
        callers.append(caller)
    began_s = time.perf_counter()
    tally.until_s = began_s + seconds
    for caller in callers:
        caller.call()
    for caller in callers:
        await caller.ended
    taken_ms = [taken * 1e3 for taken in tally.taken_s]
    return Loaded(
        requests=len(taken_ms),
        seconds=time.perf_counter() - began_s,
        p50_ms=percentile(taken_ms, 0.5),
        p99_ms=percentile(taken_ms, 0.99),
        errors=tally.errors,
        last_ms=(max(tally.ended_s, default=began_s) - began_s) * 1e3,
        ended_s=tuple(zip((at - began_s for at in tally.ended_s), taken_ms, strict=True)),
    )


def main(plan_file: Path) -> None:
    """Execute the plan and print the figures."""
    plan = json.loads(plan_file.read_text())
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    tally = Tally(Path(plan["request"]).read_bytes(), plan["each"])
    made = load(plan["port"], plan["connections"], plan["seconds"], tally)
    loaded = uvloop.run(made)
    if not plan["detailed"]:
        loaded = Loaded(
            loaded.requests,
            loaded.seconds,
            loaded.p50_ms,
            loaded.p99_ms,
            loaded.errors,
            loaded.last_ms,
        )
    print(loaded.to_json())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
