"""Load of chat streams: opens them, counts their tokens, and measures delays.

`python -m benchmarks.loading.chats PLAN.json` prints one line of JSON, see `Chatted`. The tokens
are those of `benchmarks.references.chat_upstream`, and carry the time of their sending.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from array import array
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.loading.call import Call
from benchmarks.loading.generator import Refused, execute, planned
from benchmarks.measuring.record import percentile

OK: Final = b"HTTP/1.1 200"
EVENTS: Final = b"text/event-stream"
LAST: Final = b"data: [DONE]"
TOKEN: Final = re.compile(rb'"content": ?"@(\d+) ')
USAGE: Final = b'"usage":{'
GRACE_S = 300.0


@dataclass(frozen=True, slots=True)
class Chats:
    """A load: `count` clients, each with `each` streams of `tokens` tokens one after the other, a
    token in `period_ms`."""

    port: int
    path: str
    model: str
    count: int
    tokens: int
    period_ms: int
    each: int = 1
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Duration of the load, at least."""
        return self.each * self.tokens * self.period_ms / 1e3

    def body(self, *, is_stream: bool = True) -> bytes:
        """Return the body of one request."""
        said = [
            {"role": "system", "content": "You are a helpful assistant. " * 8},
            {"role": "user", "content": "Count. " * 40},
        ]
        asked = {"messages": said, "model": self.model, "stream": is_stream}
        return json.dumps({**asked, "max_tokens": self.tokens, "seed": self.period_ms}).encode()

    def call(self, *, is_stream: bool = True) -> Call:
        """Return the call of one request."""
        return Call(self.port, self.path, self.body(is_stream=is_stream), self.headers)


@dataclass(frozen=True, slots=True)
class Chatted:
    """Result of a load. `whole`: streams with all their tokens and their end; `delay`: of a token,
    `first`: from the request to the first token. `usages`: events with a usage, which no client
    has asked for."""

    whole: int
    tokens: int
    usages: int
    delay_p50_ms: float
    delay_p99_ms: float
    first_p50_ms: float


@dataclass(slots=True)
class Seen:
    """What the clients have seen so far."""

    delays_ms: array[float] = field(default_factory=lambda: array("d"))
    firsts_ms: array[float] = field(default_factory=lambda: array("d"))
    whole: int = 0
    usages: int = 0


class Client(asyncio.Protocol):
    """One client, whose streams follow each other on one connection, if that stays open."""

    def __init__(self, plan: Chats, request: bytes, seen: Seen) -> None:
        self._plan = plan
        self._request = request
        self._seen = seen
        self._tokens = 0
        self._rest = b""
        self._began_ns = 0
        self._is_begun = False
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio callback: send the request."""
        self._transport: Any = transport
        self._began_ns = time.monotonic_ns()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """asyncio callback: count tokens; an event ends with an empty line."""
        now_ns = time.monotonic_ns()
        if not self._is_begun and not (data.startswith(OK) and EVENTS in data):
            self._end(is_whole=False)
        self._is_begun = True
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            found = TOKEN.search(event)
            if found is not None:
                if not self._tokens:
                    self._seen.firsts_ms.append((now_ns - self._began_ns) / 1e6)
                self._tokens += 1
                self._seen.delays_ms.append((now_ns - int(found[1])) / 1e6)
            elif LAST in event:
                self._end(is_whole=self._tokens == self._plan.tokens)
            self._seen.usages += USAGE in event

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """asyncio callback: a stream that ends early is not whole."""
        self._end(is_whole=False)

    def _end(self, *, is_whole: bool) -> None:
        if not self.ended.done():
            self.ended.set_result(is_whole)
            self._transport.close()


async def load(plan: Chats) -> Chatted:
    """Run all clients to their ends."""
    loop, seen, request = asyncio.get_running_loop(), Seen(), plan.call().request()

    async def run() -> None:
        for _ in range(plan.each):
            _, client = await loop.create_connection(
                lambda: Client(plan, request, seen), "127.0.0.1", plan.port
            )
            is_whole = await client.ended
            seen.whole += is_whole

    async with asyncio.timeout(plan.seconds + GRACE_S), asyncio.TaskGroup() as group:
        for number in range(plan.count):
            group.create_task(run())
            if number % 50 == 49:  # so that no listen queue overflows
                await asyncio.sleep(0.05)
    delays, firsts = list(seen.delays_ms), list(seen.firsts_ms)
    return Chatted(
        seen.whole,
        len(delays),
        seen.usages,
        percentile(delays, 0.5),
        percentile(delays, 0.99),
        percentile(firsts, 0.5),
    )


def run(plan: Chats, cores: Set[int]) -> Chatted:
    """Run a load in a process of its own. Raises Refused unless every stream was whole."""
    with planned(plan, cores) as process:
        output, complaint = process.communicate(timeout=plan.seconds + 2 * GRACE_S)
    if process.returncode:
        raise Refused(f"the streams ended with {process.returncode}: {complaint[-500:]}")
    found = Chatted(**json.loads(output))
    if found.whole != plan.count * plan.each:
        raise Refused(f"{found.whole} of {plan.count * plan.each} streams were whole: {plan.path}")
    if found.usages:
        raise Refused(f"{found.usages} events have a usage that no client asked for: {plan.path}")
    return found


if __name__ == "__main__":
    execute(Path(sys.argv[1]), Chats, load)
