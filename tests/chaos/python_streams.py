"""Streams of Python functions over sleep, scale-down, rollout, rollback, deaths, readers that stop
and clients that leave."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.chaos.calls import client
from tests.chaos.footprint import descriptors, memory_kib, pause, until
from tests.chaos.ledger import Ledger
from tests.support import stream_function
from tests.support.package_index import package_index
from tests.support.process_server import ServerProcess, server_process, wait_end
from tests.support.raw_http import Connection, connected
from tests.support.worker_server import Line, lines, watch, worker_pids

KINDS = ("plain", "async")
"""Names of the functions, and kinds of their generators."""
VALUE, SMALL_VALUE = 1 << 20, 1 << 10
"""Bytes of values of readers that stop."""
KERNEL = 12 << 20
"""Max bytes that the kernel keeps of one stream, in the sockets of server, gateway and client."""
HELD = 2 << 20
"""Max bytes of one stream that all processes keep: one value, and 1 MiB."""
KEPT_S = 3.0
"""Seconds after which a connection to a server that was kept is closed."""
FILES_MORE = 4
"""Descriptors that may be open beside those of before: a poll is under way."""
SETTLED_S = 20.0
OPEN_S = 30.0


@dataclass(frozen=True)
class Dose:
    """How much is done. `each`: streams of each kind at once."""

    seed: int
    each: int = 25
    events: int = 200
    event_ms: int = 100
    readers: int = 50
    leavers: int = 200


@dataclass
class Scene:
    """A server with two workers and one function of each kind."""

    server: ServerProcess
    folder: Path
    dose: Dose
    ledger: Ledger
    counts: Counter[str] = field(default_factory=Counter)
    begun: int = 0
    """Streams that were opened so far."""
    ended: int = 0
    """Those of them that are over."""

    @property
    def port(self) -> int:
        """The server's port."""
        port = urlsplit(self.server.url).port
        assert port is not None
        return port

    async def stream(self, what: str, name: str, may_be_cut: bool = False) -> None:
        """Read one stream to its end; it must be whole and in order, or cut if it may be."""
        async with connected(self.port) as connection:
            await self.read(what, name, connection, may_be_cut)

    async def read(self, what: str, name: str, on: Connection, may_be_cut: bool) -> None:
        """As `stream`, over a connection."""
        events, ms = self.dose.events, self.dose.event_ms
        await on.send(stream_function.asked(name, n=events, ms=ms))
        self.begun += 1
        got = await on.answer("POST", seconds=events * ms / 1e3 + 60)
        self.ended += 1
        found = stream_function.events(got.body).numbers
        in_order = found == list(range(len(found)))
        is_whole = got.status == 200 and got.end == "whole" and len(found) == events and in_order
        is_cut = got.status == 200 and got.end in ("cut", "reset") and in_order
        self.counts[f"{what}: {'whole' if is_whole else 'cut'}"] += 1
        if not is_whole and not (may_be_cut and is_cut):
            text = f"{what}: a stream of {name} ended: {got.status} {got.end}, {len(found)} events"
            self.ledger.violated(f"{text}, in order: {in_order}, {bytes(got.body[-200:])!r}")

    async def fnctl(self, *words: str) -> str:
        """Run a command; it must succeed. Return what it prints."""
        done = await asyncio.to_thread(self.server.fnctl, *words)
        self.ledger.require(done.returncode == 0, f"fnctl {words}: {done.stderr}{done.stdout}")
        return done.stdout

    async def all_fnctl(self, *words: str) -> None:
        """Run a command for each function, whose name takes the place of NAME."""
        for name in KINDS:
            await self.fnctl(*(name if word == "NAME" else word for word in words))

    async def replicas(self, *states: str) -> list[str]:
        """Return the ids of the replicas in some states."""
        async with client(self.server) as caller:
            items = (await caller.admin("GET", "/replicas")).json()["items"]
        return [item["id"] for item in items if item["state"] in states]

    async def require(self, holds: object, what: str, seconds: float = SETTLED_S) -> None:
        """Wait until a condition, an async function, holds."""
        self.ledger.require(await until(holds, seconds), what)  # type: ignore[arg-type]

    async def open_streams(
        self, what: str, group: asyncio.TaskGroup, may_be_cut: bool = False
    ) -> None:
        """Open `each` streams of each kind; return when they are."""
        wanted = self.begun + len(KINDS) * self.dose.each
        for name in KINDS:
            for _ in range(self.dose.each):
                group.create_task(self.stream(what, name, may_be_cut))

        async def are_open() -> bool:
            if self.begun < wanted:
                return False
            return await self.generators() >= len(KINDS) * self.dose.each

        await until(are_open, 2.0)

    async def generators(self) -> int:
        """Return how many generators the replicas that get calls have open."""
        return sum([(await stream_function.told(self.port, name))["now"] for name in KINDS])

    async def during(self, what: str, *steps: tuple[str, ...]) -> None:
        """Run commands while all streams are open; none may be cut."""
        async with asyncio.TaskGroup() as group:
            await self.open_streams(what, group)
            for step in steps:
                await self.all_fnctl(*step)
            self.still_open(what)

    def still_open(self, what: str) -> None:
        """Count the streams that the last command met and left open."""
        self.counts[f"{what}: open after it"] = self.begun - self.ended

    async def scale_down(self) -> None:
        """Streams over two replicas of each function, of which one is taken away."""
        await self.all_fnctl("scale", "NAME", "--min", "2", "--max", "2")

        async def are_ready() -> bool:
            return len(await self.replicas("ready")) >= 2 * len(KINDS)

        await self.require(are_ready, "two replicas of each function are not ready", OPEN_S)
        await self.during("scale-down", ("scale", "NAME", "--min", "0", "--max", "1"))

    async def rollout(self) -> None:
        """A new revision, then back to the old one; new calls get it while old streams go on."""
        async with asyncio.TaskGroup() as group:
            await self.open_streams("rollout", group)
            for name in KINDS:
                more = {"mark": "next"}
                await asyncio.to_thread(
                    stream_function.deploy, self.server, self.folder, name, name, **more
                )
                await self.served_by(name, "next")
            self.still_open("rollout")
        async with asyncio.TaskGroup() as group:
            await self.open_streams("rollback", group)
            await self.all_fnctl("rollback", "NAME")
            for name in KINDS:
                await self.served_by(name, "")
            self.still_open("rollback")

    async def served_by(self, name: str, mark: str) -> None:
        """Require that a call is answered by a revision."""
        told = await stream_function.told(self.port, name)
        self.ledger.require(told["mark"] == mark, f"{name} is served by {told}, not by {mark!r}")

    async def killed_worker(self) -> None:
        """kill -9 of one of two gateway workers: only its own streams are cut, and their
        generators end."""
        dose, server = self.dose, self.server
        assert server.process is not None
        victim = worker_pids(server.process.pid)[0]

        async def follow(line: Line, name: str) -> None:
            whose = "its own" if line.pid == victim else "the other's"
            async with connected(self.port, line.taken()) as connection:
                await self.read(f"killed worker: {whose}", name, connection, line.pid == victim)

        with lines(server, dose.each) as each:
            async with asyncio.TaskGroup() as group:
                for number, line in enumerate(each):
                    group.create_task(follow(line, KINDS[number % len(KINDS)]))
                await pause(dose.events * dose.event_ms / 4e3)
                gone = watch(victim)
                os.kill(victim, signal.SIGKILL)
                wait_end(gone)

                async def are_over() -> bool:
                    return await self.generators() <= dose.each

                await self.require(are_over, "generators of cut streams are left")
        cut = self.counts["killed worker: its own: cut"]
        self.ledger.require(cut == dose.each, f"{cut} of {dose.each} streams were cut")
        await self.require(self.no_generator, "generators are left")

    async def killed_runner(self) -> None:
        """kill -9 of the servers: streams are cut as their clients can tell, the next call is
        answered, and `fnctl why` says it."""
        async with asyncio.TaskGroup() as group:
            await self.open_streams("killed runner", group, may_be_cut=True)
            for pid in stream_function.runner_pids(self.server):
                os.kill(pid, signal.SIGKILL)
        for name in KINDS:
            await stream_function.told(self.port, name)
            why = await self.fnctl("why", name)
            self.ledger.require("killed by SIGKILL" in why, f"fnctl why {name}: {why}")
        self.ledger.require(not self.counts["killed runner: whole"], "a killed stream was whole")

    async def no_generator(self) -> bool:
        """Whether no generator is open."""
        return not await self.generators()

    def memory(self) -> dict[str, int]:
        """Return KiB of all processes by role."""
        assert self.server.process is not None
        found = {
            "runners": stream_function.runner_pids(self.server),
            "sidecars": self.server.replica_pids(),
            "gateways": worker_pids(self.server.process.pid),
        }
        return {role: sum(memory_kib(pid, "Pss") for pid in pids) for role, pids in found.items()}

    async def unread(self, size: int) -> None:
        """Readers that stop after the head: each stream holds one value and at most 1 MiB more,
        and others are served."""
        dose, what = self.dose, f"unread, values of {size} bytes"
        before = self.memory()
        made = await self.made()
        async with AsyncExitStack() as stack:
            for number in range(dose.readers):
                connection = await stack.enter_async_context(connected(self.port))
                connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
                name = KINDS[number % len(KINDS)]
                await connection.send(stream_function.asked(name, n=10**9, size=size))
            await self.stands_still()
            grown = {role: now - before[role] for role, now in self.memory().items()}
            values = await self.made() - made
            others = [
                stream_function.call(self.port, name, n=20) for name in KINDS for _ in range(10)
            ]
            answers = await asyncio.gather(*others)
            whole = all(len(stream_function.events(one.body).numbers) == 20 for one in answers)
            self.ledger.require(whole, f"{what}: other callers are not served")
        self.ledger.figures[what] = {"values": values, "grown KiB": grown}
        most = dose.readers * (HELD + KERNEL) // size
        self.ledger.require(values <= most, f"{what}: {values} values, at most {most}")
        kib = sum(grown.values())
        most = dose.readers * HELD // 1024 + 16 * 1024
        self.ledger.require(kib <= most, f"{what}: {grown} KiB more, at most {most}")
        await self.require(self.no_generator, f"{what}: generators are left")

    async def made(self) -> int:
        """Return how many values all generators made so far."""
        return sum([(await stream_function.told(self.port, name))["made"] for name in KINDS])

    async def stands_still(self) -> None:
        """Wait until no generator makes a value for a second."""
        last = -1

        async def is_still() -> bool:
            nonlocal last
            await pause(1.0)
            now = await self.made()
            is_same, last = now == last, now
            return is_same

        await self.require(is_still, "generators of readers that stopped go on", 60.0)

    async def leavers(self) -> None:
        """Clients that come and go at random moments leave no generator and no descriptor."""
        dose, chance = self.dose, random.Random(self.dose.seed)
        await pause(KEPT_S)
        before = self.open_files()
        gate = asyncio.Semaphore(2 * dose.each)

        async def come_and_go(name: str, after_s: float) -> None:
            async with gate, connected(self.port) as connection:
                await connection.send(stream_function.asked(name, n=10**6, ms=5))
                await pause(after_s)
            self.counts["left"] += 1

        async with asyncio.TaskGroup() as group:
            for number in range(dose.leavers):
                group.create_task(come_and_go(KINDS[number % 2], chance.uniform(0, 0.5)))
        await self.require(self.no_generator, "generators of clients that left are left")

        async def is_as_before() -> bool:
            now = self.open_files()
            return all(now[role] <= before[role] + FILES_MORE for role in before)

        await self.require(is_as_before, f"descriptors: {before} before")
        self.ledger.figures["descriptors"] = {"before": before, "after": self.open_files()}
        self.ledger.figures["left"] = self.counts["left"]

    def open_files(self) -> dict[str, int]:
        """Return the number of descriptors by role."""
        assert self.server.process is not None
        found: dict[str, Iterable[int]] = {
            "runners": stream_function.runner_pids(self.server),
            "sidecars": self.server.replica_pids(),
            "gateways": worker_pids(self.server.process.pid),
        }
        return {
            role: sum(sum(descriptors(pid).values()) for pid in pids)
            for role, pids in found.items()
        }


async def _play(scene: Scene) -> None:
    """Run all parts of the scenario, and take the seconds of each."""
    parts = {
        "sleep": lambda: scene.during("sleep", ("sleep", "NAME")),
        "scale-down": scene.scale_down,
        "rollout and rollback": scene.rollout,
        "killed worker": scene.killed_worker,
        "killed runner": scene.killed_runner,
        "unread, large": lambda: scene.unread(VALUE),
        "unread, small": lambda: scene.unread(SMALL_VALUE),
        "clients that leave": scene.leavers,
    }
    took = scene.ledger.figures["seconds"] = {}
    for name, part in parts.items():
        began_s = time.monotonic()
        await part()
        took[name] = round(time.monotonic() - began_s, 1)


async def run(data: Path, dose: Dose) -> Ledger:
    """Of all streams only those of a killed worker or server are cut; readers that stop hold one
    value each; nothing is left of clients that leave."""
    ledger = Ledger("streams of Python functions", {"streams": len(KINDS) * dose.each})
    with package_index() as index:
        index.add_installed("msgspec")
        options = ("--workers", "2", "--cpu-slots", "4")
        environment = {"FN_UV_CONFIG": str(index.config(data))}
        with server_process(data / "data", *options, environment=environment) as server:
            scene = Scene(server, data, dose, ledger)
            for name in KINDS:
                await asyncio.to_thread(stream_function.deploy, server, data, name, name)
            await _play(scene)
            for line in list(server.complaints)[:5]:
                if '"a worker ended"' not in line:
                    ledger.violated(f"the server's log: {line.rstrip()}")
    ledger.figures |= scene.counts
    return ledger
