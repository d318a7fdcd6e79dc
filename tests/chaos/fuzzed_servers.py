"""Odd requests to a server function, and odd answers of one: nothing is smuggled or mixed up.

Each connection has a number, and every token sent over it begins with that number.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from gateway.proxy.retries import SENDS_MAX
from tests.chaos.footprint import memory_kib
from tests.chaos.ledger import Ledger
from tests.support import faulty_server
from tests.support.odd_http import odd_answer, odd_request, pieces, token, tokens
from tests.support.process_server import ServerProcess, server_process
from tests.support.raw_http import Connection, Got, NoHttp, ask, connected, request
from tests.support.worker_server import worker_pids

AT_ONCE = 96
"""Connections at once: more than the server has slots."""
BATCH = 2500
"""Connections after which the server's own records are compared."""
ANSWER_S = 0.5
"""Seconds that a connection waits for more answers to odd requests."""
LAST = request("GET", "/fn/web/", None, {"Connection": "close"})
"""Ends a connection at once, unless an odd request before it is not over."""
GROWTH_MAX_KIB = 32 * 1024
TIMES_MAX = SENDS_MAX + 1
"""Max times that one request reaches a server: its sends, and one over a kept connection that the
server closed meanwhile, which is not counted as a send."""
LIMITS = "concurrency = 64\nfirst_byte_s = 0.8\nmax_s = 3"
NAMED = {"upstream_failed", "upstream_timeout", "replica_died"}
"""Codes of the gateway's own 5xx answers that odd answers of a server may cause."""


@dataclass
class Scene:
    """A server on `port` with the function `web`, and what came back.

    `answer_s`: seconds that an answer may take; every limit of the function is shorter.
    """

    port: int
    seed: int
    ledger: Ledger
    answer_s: float = 10.0
    counts: Counter[str] = field(default_factory=Counter)

    def violated(self, number: int, text: str) -> None:
        """Record a violation with the seed that repeats it."""
        self.ledger.violated(f"seed {self.seed}/{number}: {text}")

    def check(self, number: int, said: bytes) -> None:
        """Every token in received bytes is of this connection."""
        for whose, _ in tokens(said):
            if whose != number:
                self.violated(number, f"got a token of connection {whose}")

    async def requests(self, number: int) -> None:
        """Send one to three odd requests over one connection; check everything that comes back."""
        random = Random(f"{self.seed}/requests/{number}")
        count = random.choice((1, 1, 1, 2, 3))
        data = b"".join(odd_request(random, token(number, one)) for one in range(count))
        if random.random() < 0.8:
            data += LAST
        async with connected(self.port) as connection:
            for piece in pieces(random, data):
                await connection.send(piece)
                await asyncio.sleep(0)
            said = await connection.rest(ANSWER_S)
        self.check(number, said)
        for status in re.findall(rb"(?:^|\n|\})HTTP/1\.1 (\d{3}) ", said):
            self.counts[status.decode()] += 1
        if re.search(rb"(?:^|\n|\})HTTP/1\.1 5\d\d ", said):
            self._check_refusal(number, said)

    def _check_refusal(self, number: int, said: bytes) -> None:
        codes = {one.decode() for one in re.findall(rb'"code":\s*"(\w+)"', said)}
        if not codes or codes & {"internal"}:
            self.violated(number, f"a 5xx that no contract names: {said[:400]!r}")

    async def answers(self, number: int) -> None:
        """Let the server send one odd answer, then call it once more over the same connection."""
        random = Random(f"{self.seed}/answers/{number}")
        first, later = token(number, 0), token(number, 1)
        data, wanted = odd_answer(random, first)
        end = random.choice(("keep", "keep", "fin", "rst")) if wanted is None else "keep"
        # A surplus answer that comes later than its forerunner, while the next call already waits,
        # cannot be told from the right one: it is sent in one write.
        is_split = len(data) < 2000 and (wanted is not None or end != "keep")
        size = random.choice((0, 0, 0, 1, 7, 100)) if is_split else 0
        method = random.choice(("PUT", "PUT", "POST"))
        target = f"/fn/web/raw?end={end}&size={size}"
        async with connected(self.port) as connection:
            got = await self._ask(
                connection, number, request(method, target, data, {"Token": first})
            )
            if got is None:
                return
            came = (got.status, bytes(got.body), got.end)
            if wanted is not None and came != (200, wanted, "whole"):
                self.violated(number, f"a right answer became {got}")
            self.counts[f"answers {got.status} {got.end}"] += 1
            if got.end == "whole" and not got.closes and got.status != 101:
                shown = request("GET", "/fn/web/show", None, {"Token": later})
                again = await self._ask(connection, number, shown)
                if again is not None and not self._is_right(again, later):
                    self.violated(number, f"after an odd answer: {again}")

    def _is_right(self, got: Got, own: str) -> bool:
        if got.status == 200:
            return own.encode() in got.body and b'"fields"' in got.body
        return got.code in NAMED or (got.status == 0 and got.end in ("cut", "reset"))

    async def _ask(self, connection: Connection, number: int, sent: bytes) -> Got | None:
        try:
            await connection.send(sent)
            got = await connection.answer("GET", self.answer_s)
        except NoHttp as error:
            self.violated(number, f"an answer that is no HTTP: {error}")
            return None
        except asyncio.LimitOverrunError:
            self.violated(number, "an answer with a head over 1 MiB")
            return None
        self.check(number, bytes(got.body))
        if got.status >= 500 and got.get("content-type") == "application/problem+json":
            self.counts[got.code] += 1
            if got.code not in NAMED:
                self.violated(number, f"a 5xx that no contract names: {got}")
        return got

    async def others(self, number: int) -> None:
        """Call the same function as an honest client; the answer must be right."""
        own = token(number, 9)
        got = await ask(self.port, "GET", "/fn/web/show", fields={"Token": own})
        self.check(number, bytes(got.body))
        if got.status != 200 or own.encode() not in got.body:
            self.violated(number, f"an honest call: {got}")

    async def compare(self) -> None:
        """What the server recorded: no refused head, no smuggled token, none over TIMES_MAX."""
        got = await ask(self.port, "GET", "/fn/web/tally?tokens&reset")
        if got.status != 200:
            self.ledger.violated(f"the server's records: {got}")
            return
        told: dict[str, Any] = got.json()
        self.counts["requests that reached the server"] += told["requests"]
        for text in told["malformed"]:
            self.ledger.violated(f"the server got a malformed request: {text}")
        for text, times in told["tokens"].items():
            for number, is_smuggled in tokens(text.encode()):
                if is_smuggled:
                    self.violated(number, f"smuggled: {text}")
                elif times > TIMES_MAX:
                    self.violated(number, f"{text} reached the server {times} times")


async def run(data: Path, seed: int, count: int = 100_000, workers: int = 2) -> Ledger:
    """Send `count` odd requests and `count` odd answers; memory stays flat."""
    ledger = Ledger("odd requests and answers of servers", {"seed": seed, "each": count})
    options = ("--workers", str(workers), "--cpu-slots", "3")
    with server_process(data / "data", *options) as server:
        await asyncio.to_thread(faulty_server.deploy, server, data, "web", limits=LIMITS)
        port = urlsplit(server.url).port
        assert port is not None
        scene = Scene(port, seed, ledger)
        for kind in (scene.requests, scene.answers):
            early_kib = 0
            for start in range(0, count, BATCH):
                await batch(scene, kind, range(start, min(count, start + BATCH)))
                if start <= count // 5:
                    early_kib = _memory_kib(server)
            grown = _memory_kib(server) - early_kib
            name = kind.__name__
            ledger.figures[f"KiB grown, {name}"] = grown
            ledger.require(grown < GROWTH_MAX_KIB, f"{name}: the gateway grew by {grown} KiB")
        for line in list(server.complaints)[:20]:
            ledger.violated(f"the server's log: {line.rstrip()[-2000:]}")
    ledger.figures |= dict(sorted(scene.counts.items()))
    return ledger


def _memory_kib(server: ServerProcess) -> int:
    """Return the resident memory of all gateway processes."""
    assert server.process is not None
    supervisor = server.process.pid
    return sum(memory_kib(pid, "Rss") for pid in worker_pids(supervisor) or [supervisor])


async def batch(scene: Scene, kind: Callable[[int], Awaitable[None]], numbers: range) -> None:
    """Run these connections, beside honest calls; then compare the server's records."""
    waiting = iter(numbers)

    async def work() -> None:
        for number in waiting:
            await kind(number)
            if number % 10 == 0:
                await scene.others(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
    await scene.compare()
