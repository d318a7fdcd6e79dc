"""A healthy server beside processes that compute without end: it must not be taken for hung."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp

from tests.chaos.calls import client
from tests.chaos.chat_calls import FORMS, Ask, judge
from tests.chaos.footprint import pause
from tests.chaos.ledger import Ledger
from tests.support import chat_server
from tests.support.process_server import ServerProcess, server_process

NAME: Final = "model"
LOOPS: Final = 2
"""Processes beside the server that use a whole core each."""
LIMITS: Final = "concurrency = 128\nwait_s = 300"
UPLOAD: Final = 256 * 1024
PART: Final = 32 * 1024
PART_S: Final = 0.02
"""Pause between two parts of an upload."""
SLOW_S: Final = 16.0
"""Length of a slow stream, whatever its rate."""
RATES: Final = (0.5, 0.2, 0.1)
"""Tokens per second of slow streams."""
TIMEOUT_S: Final = 600.0
CHAT, EMBEDDINGS = FORMS[0], FORMS[-1]


class Slow(Ask):
    """A stream whose server pauses for seconds between two tokens."""

    @property
    def text(self) -> str:
        """The text, with the orders for the server."""
        return f"{super().text} [rate={RATES[self.number % len(RATES)]}]"


class Upload(Ask):
    """A call whose body takes its client a while."""

    @property
    def text(self) -> str:
        """The text, of two long words."""
        return f"{super().text} {'x' * UPLOAD}"


class Kind(NamedTuple):
    """One kind of exchange."""

    path: str
    make: Callable[[int], Ask]
    share: float
    """Of all exchanges."""
    callers: int


def _ask(number: int) -> Ask:
    return Ask(number, NAME, NAME, EMBEDDINGS, False, False, 1, False)


def _stream(number: int) -> Ask:
    return Ask(number, NAME, NAME, CHAT, True, False, 2 + number % 8, False)


def _slow(number: int) -> Ask:
    tokens = round(SLOW_S * RATES[number % len(RATES)]) + 1
    return Slow(number, NAME, NAME, CHAT, True, False, tokens, False)


def _upload(number: int) -> Ask:
    return Upload(number, NAME, NAME, EMBEDDINGS, False, False, 1, False)


KINDS: Final = {
    "short calls": Kind(f"/fn/{NAME}/v1/embeddings", _ask, 0.6, 4),
    "streams of /v1": Kind("/v1/chat/completions", _stream, 0.28, 6),
    "slow streams": Kind("/v1/chat/completions", _slow, 0.02, 50),
    "uploads": Kind(f"/fn/{NAME}/v1/embeddings", _upload, 0.1, 4),
}


@dataclass(frozen=True)
class Dose:
    """Parameters of a run: exchanges of all kinds together."""

    seed: int
    exchanges: int = 50_000


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run processes that each use a whole core."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in loops:
            one.kill()
            one.wait()


async def _in_parts(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PART):
        yield body[start : start + PART]
        await pause(PART_S)


async def _exchange(
    session: aiohttp.ClientSession, server: ServerProcess, kind: Kind, ask: Ask
) -> str:
    """Make one exchange; return what is wrong with its answer, "" for nothing."""
    headers = {**server.headers, "Content-Length": str(len(ask.body))}
    data = _in_parts(ask.body) if isinstance(ask, Upload) else ask.body
    try:
        async with session.post(f"{server.url}{kind.path}", data=data, headers=headers) as answer:
            body = await answer.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return repr(error)
    if answer.status != 200:
        return f"{answer.status} {body[:300]!r}"
    found = judge(ask, body)
    return found.wrong or ("" if found.kind == "whole" else found.kind)


async def _load(server: ServerProcess, dose: Dose, ledger: Ledger, counts: Counter[str]) -> None:
    """Make all exchanges, those of each kind by callers of its own."""

    async def call_on(name: str, numbers: Iterator[int], session: aiohttp.ClientSession) -> None:
        kind = KINDS[name]
        for number in numbers:
            wrong = await _exchange(session, server, kind, kind.make(number))
            counts[name] += 1
            if wrong:
                ledger.violated(f"{name}: #{number}: {wrong}")

    timeout, connector = aiohttp.ClientTimeout(total=TIMEOUT_S), aiohttp.TCPConnector(limit=0)
    begin = random.Random(dose.seed).randrange(10**6)
    async with (
        aiohttp.ClientSession(timeout=timeout, connector=connector) as session,
        asyncio.TaskGroup() as group,
    ):
        for name, kind in KINDS.items():
            numbers = iter(range(begin, begin + max(1, round(kind.share * dose.exchanges))))
            for _ in range(kind.callers):
                group.create_task(call_on(name, numbers, session))


async def _replicas(server: ServerProcess) -> list[str]:
    async with client(server) as caller:
        items = (await caller.admin("GET", "/replicas")).json()["items"]
    return [one["id"] for one in items if one["state"] == "ready"]


async def run(data: Path, dose: Dose) -> Ledger:
    """No exchange fails, the server is never replaced, and the replica is the same at the end."""
    given = {"seed": dose.seed, "exchanges": dose.exchanges, "busy loops": LOOPS}
    ledger = Ledger("a healthy server on a busy machine", given)
    counts: Counter[str] = Counter()
    with server_process(data / "data") as server:
        await asyncio.to_thread(chat_server.deploy, server, data, NAME, limits=LIMITS)
        began_s = time.monotonic()
        with busy_loops(LOOPS):
            await _load(server, Dose(dose.seed, len(KINDS)), ledger, Counter())
            before = await _replicas(server)
            await _load(server, dose, ledger, counts)
        ledger.figures["seconds"] = round(time.monotonic() - began_s, 1)
        ledger.figures["load average of 5 min"] = os.getloadavg()[1]
        after = await _replicas(server)
        ledger.require(before == after, f"replicas: {before} at the beginning, {after} at the end")
        async with client(server) as caller:
            metrics = (await caller.get("/metrics")).body.decode()
        told = [line for line in metrics.splitlines() if not line.endswith(" 0.0")]
        replaced = [line for line in told if line.startswith("fngate_replicas_replaced_total{")]
        ledger.require(not replaced, f"replaced: {replaced}")
        ledger.figures["golden samples asked"] = [
            line for line in told if line.startswith("fngate_golden_samples_total{")
        ]
        said = [line for line in server.log if '"a server is not answering"' in line]
        ledger.figures["reported as not answering"] = len(said)
        for line in server.complaints:
            ledger.violated(f"the server's log: {line.rstrip()[-2000:]}")
    ledger.figures |= counts
    return ledger
