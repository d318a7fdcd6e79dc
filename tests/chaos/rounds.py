"""Rounds of load on a server whose replicas are killed all the time. No request may be lost and no
resource may leak."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientTimeout

from pool_manager.core.pool import FAILING_AFTER
from tests.chaos import footprint, history
from tests.chaos.footprint import Footprint
from tests.chaos.killing import Kills, killing
from tests.chaos.ledger import Ledger
from tests.chaos.load import Request, Tally, bursts, clients, schedule
from tests.chaos.subjects import Subject, chosen
from tests.support.caller import Caller
from tests.support.process_server import ServerProcess, server_process

ZERO_S = 60.0
"""Max seconds until everything is scaled to zero after the last answer."""
GROWTH_MAX = 0.05
"""Max growth of resident memory in the last round, as a share."""


@dataclass(frozen=True)
class Dose:
    """Parameters of a run. `every_s`: bounds of the pause between two kills. `kills_min` (per
    round) and `returns_min` (per function, over all rounds): minimum chaos for a valid result.
    `starts_max`, `answers_each`: see `Kills`.

    `all_busy`: call all functions all the time instead of a few in turn.
    """

    seed: int
    requests: int = 20_000
    rounds: int = 3
    functions: int = 6
    slots: int = 2
    at_once: int = 64
    phases: int = 40
    idle_s: float = 0.5
    every_s: tuple[float, float] = (0.2, 0.4)
    kills_min: int = 100
    returns_min: int = 20
    leavers: float = 0.1
    starts_max: int = FAILING_AFTER - 1
    answers_each: int = 25
    all_busy: bool = False


class Rounds:
    """One run of a dose against a running server."""

    def __init__(self, dose: Dose, server: ServerProcess, caller: Caller, ledger: Ledger) -> None:
        assert server.process is not None
        self._dose = dose
        self._server = server
        self._pid = server.process.pid
        self._caller = caller
        self._ledger = ledger
        self._chance = random.Random(dose.seed)
        self._subjects = chosen(dose.functions)
        self._prints: list[Footprint] = []
        self._database = server.data / "fngate.db"

    async def run(self, folder: Path) -> None:
        """Deploy, then run all rounds."""
        for subject in self._subjects:
            result = await subject.deploy(self._caller, folder, self._dose.idle_s)
            self._ledger.figures[f"function {subject.name}"] = _profile(result)
        for number in range(1, self._dose.rounds + 1):
            await self._round(number)
        self._compare()
        self._count_returns()
        for line in self._server.complaints:
            self._ledger.violated(f"the server's log: {line.rstrip()}")

    async def _round(self, number: int) -> None:
        before = await footprint.metrics(self._caller)
        began = time.monotonic()
        first = (number - 1) * self._dose.requests
        requests = schedule(
            self._chance, self._phases(), self._dose.requests, first, self._dose.leavers
        )
        tally, kills = await self._run_load(requests)
        took_s = time.monotonic() - began
        await self._wait_zero(number)
        last = self._prints[-1] if self._prints else None
        self._prints.append(await footprint.settled(self._caller, self._pid, last))
        sends = _sends(before, await footprint.metrics(self._caller))
        self._ledger.figures[f"round {number}"] = {
            "seconds": round(took_s, 1),
            "requests_per_s": round(self._dose.requests / took_s, 1),
            "kills": dict(kills.states),
            "sends": sends,
            **_tallied(tally),
            "footprint": asdict(self._prints[-1]),
        }
        self._ledger.require(
            kills.count >= self._dose.kills_min,
            f"round {number}: only {kills.count} kills, expected {self._dose.kills_min}",
        )
        total = tally.left + tally.statuses.total()
        self._ledger.require(
            total == self._dose.requests, f"round {number}: {total} requests came to an end"
        )

    def _phases(self) -> list[list[Subject]]:
        if self._dose.all_busy:
            return [list(self._subjects)]
        return bursts(self._chance, self._subjects, self._dose.phases)

    async def _run_load(self, requests: Iterator[Request]) -> tuple[Tally, Kills]:
        dose, ended, tally = self._dose, asyncio.Event(), Tally()
        kills = Kills(dose.starts_max, dose.answers_each)
        killer = killing(
            self._server, self._caller, self._chance, kills, dose.every_s, tally, ended
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(killer)
            await clients(self._server.url, requests, dose.at_once, self._ledger, tally)
            ended.set()
        return tally, kills

    async def _wait_zero(self, number: int) -> None:
        """Wait until nothing is held or in flight and only the standby's process is left."""

        async def is_zero() -> bool:
            functions = (await self._caller.admin("GET", "/functions")).json()["items"]
            replicas = (await self._caller.admin("GET", "/replicas")).json()["items"]
            busy = any(item["held"] or item["in_flight"] for item in functions)
            states = [item["state"] for item in replicas]
            return not busy and states == ["standby"] and len(self._server.replica_pids()) == 1

        if not await footprint.until(is_zero, ZERO_S):
            left = (await self._caller.admin("GET", "/replicas")).json()["items"]
            loads = (await self._caller.admin("GET", "/functions")).json()["items"]
            self._ledger.violated(f"round {number}: not at zero after {ZERO_S} s: {left} {loads}")

    def _compare(self) -> None:
        """Compare the last two rounds: no resource may grow. Memory needs two rounds to warm up."""
        if len(self._prints) < 2:
            return
        before, after = self._prints[-2:]
        self._ledger.require(
            after.counts == before.counts,
            f"descriptors, tasks, processes: {before.counts} became {after.counts}",
        )
        growth = after.rss_kib / before.rss_kib - 1
        self._ledger.figures["memory growth of the last round"] = f"{growth:.2%}"
        if len(self._prints) > 2:
            self._ledger.require(growth <= GROWTH_MAX, f"memory grew by {growth:.2%}")

    def _count_returns(self) -> None:
        found = history.returns(self._database)
        for subject in self._subjects:
            times = found.get(subject.name, history.Returns(0, 0, 0, 0))
            self._ledger.figures[f"zeros of {subject.name}"] = asdict(times)
            self._ledger.require(
                times.zeros >= self._dose.returns_min,
                f"{subject.name} went to zero and came back {times.zeros} times,"
                f" expected {self._dose.returns_min}",
            )


async def run(data: Path, dose: Dose) -> Ledger:
    """Run the whole scenario in an empty folder."""
    ledger = Ledger("rounds under fire", {"dose": asdict(dose)})
    folder = data / "models"
    folder.mkdir(parents=True)
    options = ("--cpu-slots", str(dose.slots))
    with server_process(data / "data", *options, environment=footprint.PROBE) as server:
        async with ClientSession(timeout=ClientTimeout(total=60)) as session:
            caller = Caller(server.url, server.token, session)
            with _all_kept(ledger):
                await Rounds(dose, server, caller, ledger).run(folder)
    return ledger


@contextmanager
def _all_kept(ledger: Ledger) -> Iterator[None]:
    """Turn an exception into a violation, so that the results so far are reported."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - recorded in the report
        ledger.violated(f"the run ended early: {error!r}")


def _profile(result: dict[str, Any]) -> str:
    profile = result["profile"]
    latency = profile["latency_ms"].get("1")
    batch = f"batches of {profile['batch_max']}" if profile["batchable"] else "no batches"
    return f"{latency} ms, {batch}"


def _sends(before: dict[str, float], after: dict[str, float]) -> dict[str, int]:
    """Return the increase in requests by number of sends, and in retries by reason."""
    return {
        name.removeprefix("fngate_"): int(value - before.get(name, 0))
        for name, value in sorted(after.items())
        if name.startswith(("fngate_request_sends_bucket", "fngate_retries_total"))
    }


def _tallied(tally: Tally) -> dict[str, Any]:
    waits = sorted(tally.waits_s) or [0.0]
    slow = statistics.quantiles(waits, n=100) if len(waits) > 1 else waits
    return {
        "right": tally.right,
        "left early": tally.left,
        "statuses": dict(Counter(tally.statuses)),
        "median_s": round(statistics.median(waits), 3),
        "p99_s": round(slow[-1], 3),
        "longest_s": round(waits[-1], 3),
    }
