"""A function in production on the only device, and deploys of another that never becomes ready."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

from tests.chaos.calls import client
from tests.chaos.chat_calls import FORMS, Ask, judge
from tests.chaos.footprint import pause, until
from tests.chaos.ledger import Ledger
from tests.support import chat_server
from tests.support.process_server import ServerProcess, server_process

NAME, HOPELESS = "production", "hopeless"
EVERY_S: Final = 0.05
"""Seconds between two calls, whether or not the last one is answered."""
TRIAL_WAIT_S: Final = 20.0
"""Seconds that a trial waits for room."""
HELD_S: Final = 55.0
"""Max seconds that a call waits for the device that a hopeless trial has."""
TIMEOUT_S: Final = 300.0


@dataclass(frozen=True)
class Dose:
    """Rounds; each has the calls without a deploy for `seconds`, and beside two kinds of it."""

    rounds: int = 3
    seconds: float = 20.0


@dataclass
class Calls:
    """Calls of the function in production, and the milliseconds that they took."""

    server: ServerProcess
    session: aiohttp.ClientSession
    ledger: Ledger
    took_ms: list[float] = field(default_factory=list)

    async def one(self, number: int) -> None:
        """Make a call; anything but its right answer is a violation."""
        ask, began_s = Ask(number, NAME, NAME, FORMS[-1], False, False, 1, False), time.monotonic()
        url = f"{self.server.url}{ask.form.path}"
        try:
            headers = self.server.headers
            async with self.session.post(url, data=ask.body, headers=headers) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.ledger.violated(f"#{number}: {error!r}")
            return
        self.took_ms.append((time.monotonic() - began_s) * 1e3)
        wrong = judge(ask, body).wrong if answer.status == 200 else body[:300]
        self.ledger.require(answer.status == 200 and not wrong, f"#{number}: {wrong!r}")

    @contextlib.asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """Call every EVERY_S while the block runs; its end waits for the answers."""
        ended, self.took_ms = asyncio.Event(), []

        async def call_on(group: asyncio.TaskGroup) -> None:
            number = 0
            while not ended.is_set():
                number += 1
                group.create_task(self.one(number))
                await pause(EVERY_S)

        async with asyncio.TaskGroup() as group:
            group.create_task(call_on(group))
            try:
                yield
            finally:
                ended.set()

    def p99_ms(self) -> float:
        """Return the 99th percentile."""
        return round(statistics.quantiles(self.took_ms, n=100)[-1], 1)


def _hopeless(folder: Path) -> Path:
    """Write the bundle of a server whose `ready` is 404 for ever."""
    path = chat_server.bundle(folder, HOPELESS)
    manifest = path / "function.toml"
    manifest.write_text(manifest.read_text().replace('"/health"', '"/never"'))
    return path


async def _deploy(server: ServerProcess, bundle: Path, ledger: Ledger, wanted: str) -> float:
    """Deploy a hopeless server; it must fail and say `wanted`. Return the seconds that it took."""
    began_s = time.monotonic()
    words = ("deploy", str(bundle), "--trust")
    done = await asyncio.to_thread(server.fnctl, *words, timeout_s=TIMEOUT_S)
    said = done.stdout + done.stderr
    ledger.require(done.returncode != 0 and wanted in said, f"the deploy said: {said}")
    return round(time.monotonic() - began_s, 1)


async def _play(calls: Calls, bundle: Path, dose: Dose) -> None:
    """Play the rounds. (1) Calls alone. (2) A trial waits for room: the device is in use. (3) A
    trial has taken the device of a function that was asleep, and its calls wait for it."""
    server, ledger = calls.server, calls.ledger
    figures: dict[str, list[float]] = calls.ledger.figures

    async def part(name: str, during: Callable[[], Awaitable[object]]) -> None:
        async with calls.beside():
            await during()
        figures.setdefault(f"{name}: p99, ms", []).append(calls.p99_ms())
        figures.setdefault(f"{name}: calls", []).append(len(calls.took_ms))

    for _ in range(dose.rounds):
        await calls.one(0)
        await part("alone", lambda: pause(dose.seconds))  # (1)
        await part("a trial waits", lambda: _deploy(server, bundle, ledger, NAME))  # (2)
        await asyncio.to_thread(server.fnctl, "sleep", NAME)  # (3)
        deploy = asyncio.ensure_future(_deploy(server, bundle, ledger, "404"))
        is_there = await until(lambda: _has_trial(server), TIMEOUT_S)
        ledger.require(is_there, "the trial has not begun")
        calls.took_ms = []
        await calls.one(0)
        waited_s = calls.took_ms[0] / 1e3 if calls.took_ms else TIMEOUT_S
        ledger.require(waited_s <= HELD_S, f"a call waited {waited_s:.1f} s for a hopeless trial")
        figures.setdefault("first call behind a trial, s", []).append(round(waited_s, 1))
        figures.setdefault("that trial, s", []).append(await deploy)


async def _has_trial(server: ServerProcess) -> bool:
    """Whether a trial has the device."""
    async with client(server) as caller:
        items = (await caller.admin("GET", "/replicas")).json()["items"]
    return any(one["role"] == "trial" for one in items)


async def run(data: Path, dose: Dose) -> Ledger:
    """No call fails, whether the trial waits for the device or has it."""
    ledger = Ledger("hopeless deploys on the only device", {"rounds": dose.rounds})
    options = ("--cpu-slots", "1")
    environment = {"FN_STANDBYS": "0", "FN_TRIAL_WAIT_S": str(TRIAL_WAIT_S)}
    timeout, connector = aiohttp.ClientTimeout(total=TIMEOUT_S), aiohttp.TCPConnector(limit=0)
    with server_process(data / "data", *options, environment=environment) as server:
        limits = "concurrency = 64\nwait_s = 120"
        await asyncio.to_thread(chat_server.deploy, server, data, NAME, limits=limits)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            await _play(Calls(server, session, ledger), _hopeless(data), dose)
        for line in server.complaints:
            ledger.violated(f"the server's log: {line.rstrip()[-2000:]}")
    return ledger
