"""Engines that sleep and wake hundreds of times beside processes that compute without end, a third
of them with faults: no sound one may be given up, and no caller may meet one that is not."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.chaos.aftermath import require_gone
from tests.chaos.busy_host import LOOPS, busy_loops
from tests.chaos.calls import client
from tests.chaos.footprint import pause
from tests.chaos.ledger import Ledger
from tests.support.caller import Caller
from tests.support.process_server import ServerProcess, server_process
from tests.support.sleepy_engine.engine import FAULTS
from tests.support.sleepy_engine.sleepers import Sleepers, completion, states

WRONG_MAX: Final = 2
"""After as many failures within a day the parks of a revision are off."""
TABLES: Final = "[scaling]\nidle_s = 1"
SOUND: Final = frozenset({"", "early", "slow"})
"""Faults with which an engine comes back right."""
FAULTY_SHARE: Final = 3
"""One of so many functions has faults."""
DEPLOYS: Final = 2
"""Deploys at once."""
SILENT: Final = "the NVIDIA driver "
"""In errors of the log that too slow a reading of the GPUs is the reason of: the server has a small
part of the CPUs, and asks for hundreds of values."""
POLL_S: Final = 0.2
REST_S: Final = 90.0
"""Longest time until an engine sleeps or is gone: its idle time, a sample, a call and a proof that
each take until their limit of 20 s."""


@dataclass(frozen=True)
class Dose:
    """How much is done."""

    seed: int
    functions: int = 9
    """A multiple of FAULTY_SHARE."""
    cycles: int = 70
    """Times that each function without faults rests."""
    faulty_cycles: int = 30
    """Times that each of the others does: some faults last until a limit."""


@dataclass
class Cycles:
    """The functions and what became of their engines."""

    caller: Caller
    server: ServerProcess
    sleepers: Sleepers
    ledger: Ledger
    states: dict[str, dict[str, str]] = field(default_factory=dict)
    """The states of all replicas as of the last look."""
    looks: asyncio.Condition = field(default_factory=asyncio.Condition)
    counts: Counter[str] = field(default_factory=Counter)
    wakes_s: list[float] = field(default_factory=list)
    """Times of calls that a wake answered, without delays by faults."""

    async def look_on(self) -> None:
        """Read the states again and again."""
        while True:
            found = await states(self.caller)
            async with self.looks:
                self.states = found
                self.looks.notify_all()
            await pause(POLL_S)

    async def play(self, name: str, cycles: int, chance: random.Random | None) -> None:
        """Call a function and let it rest, again and again; `chance` chooses its faults, None for a
        function without. Once its parks are off, another revision is deployed."""
        parked = fault = ""
        failures, revision = 0, 1
        for _ in range(cycles):
            id = await self._call(name, fault, parked)
            failures += fault not in SOUND
            if failures == WRONG_MAX:
                self.sleepers.break_down(name, "")
                await asyncio.to_thread(deploy, self.server, self.sleepers, name, revision)
                failures, revision = 0, revision + 1
                id = await self._call(name, "", "")
            fault = chance.choice(("", *FAULTS)) if chance is not None else ""
            self.sleepers.break_down(name, fault)
            self.counts["faults"] += bool(fault)
            parked = await self._rest(name, id)
            self.counts["parked" if parked else "not parked"] += 1
            if not parked and chance is None:
                self.ledger.violated(f"{name}: a sound engine was not parked")
            if fault == "hung":
                self.sleepers.break_down(name, "")
        await self._call(name, fault, parked)

    async def _call(self, name: str, fault: str, parked: str) -> str:
        """Call a function whose replica `parked` sleeps, "" for none, with a fault; return the id
        of the replica that has answered."""
        began_s = time.monotonic()
        # The same prompt each time: the cache of prefixes has it.
        status, wrong = await completion(self.caller, name, f"tell me of {name}")
        took_s = time.monotonic() - began_s
        if status != 200 or wrong:
            self.ledger.violated(f"{name} after {fault!r}: {status} {wrong}")
        there = (await states(self.caller)).get(name, {})
        living = {id: state for id, state in there.items() if state != "releasing"}
        # One that has answered may sleep again by now, on a machine as busy as this.
        id = next((id for id in living if living[id] != "parked"), next(iter(living), ""))
        if not self._judge(fault, parked, id):
            decided = await self._decided(name)
            self.ledger.violated(f"{name}: {fault!r}, {parked}, {there}: {decided}")
        if parked == id and fault != "slow":
            self.wakes_s.append(took_s)
        return id

    def _judge(self, fault: str, parked: str, id: str) -> bool:
        """Count what a call has woken or started; return whether that is right."""
        if not parked:
            self.counts["cold starts"] += 1
            return True
        is_awake = parked == id
        self.counts["wakes" if is_awake else "wakes given up"] += 1
        return is_awake == (fault in SOUND)

    async def _decided(self, name: str) -> list[str]:
        """Return the last decisions about a function."""
        shown = (await self.caller.admin("GET", f"/functions/{name}/why")).json()
        return [one["text"] for one in shown["decisions"]][-8:]

    async def _rest(self, name: str, id: str) -> str:
        """Wait until the engine of a replica sleeps, or has ended; return its id if it sleeps."""
        try:
            async with asyncio.timeout(REST_S), self.looks:
                for _ in range(2):  # the first reading may have begun before the call ended
                    await self.looks.wait()
                await self.looks.wait_for(lambda: self._state(name, id) in ("parked", ""))
        except TimeoutError:
            there, decided = self.states.get(name), await self._decided(name)
            self.ledger.violated(f"{name}: does not rest: {there}: {decided}")
        return id if self._state(name, id) == "parked" else ""

    def _state(self, name: str, id: str) -> str:
        return self.states.get(name, {}).get(id, "")


async def run(data: Path, dose: Dose) -> Ledger:
    """All calls are answered right; sound engines are parked and woken in each cycle, the others
    are ended."""
    given = {"seed": dose.seed, "functions": dose.functions, "busy loops": LOOPS}
    ledger = Ledger("engines that sleep and wake on a busy machine", given)
    names = [f"sleeper-{number}" for number in range(dose.functions)]
    # A start takes the GPU of no parked engine while there are others. More GPUs would take the
    # server, which has a small part of the CPUs, too long to read.
    sleepers = Sleepers(data, dose.functions + dose.functions // FAULTY_SHARE)
    with server_process(data / "data", environment=sleepers.environment) as server:
        await _deploy_all(server, sleepers, names)
        began_s = time.monotonic()
        async with client(server, REST_S) as caller:
            scene = Cycles(caller, server, sleepers, ledger)
            looking = asyncio.create_task(scene.look_on())
            with busy_loops(LOOPS):
                async with asyncio.TaskGroup() as group:
                    for number, name in enumerate(names):
                        is_faulty = number % FAULTY_SHARE == 0
                        cycles = dose.faulty_cycles if is_faulty else dose.cycles
                        chance = random.Random(f"{dose.seed} {name}") if is_faulty else None
                        group.create_task(scene.play(name, cycles, chance))
                ledger.figures["load average of 1 min"] = os.getloadavg()[0]
            looking.cancel()
        ledger.figures["seconds"] = round(time.monotonic() - began_s, 1)
        for line in server.complaints:
            if SILENT in line:
                scene.counts["errors as the driver is silent"] += 1
            else:
                ledger.violated(f"the server's log: {line.rstrip()[-2000:]}")
        await require_gone(server, ledger)
    ledger.figures |= scene.counts
    if scene.wakes_s:
        ledger.figures["ms of a call that wakes, median and longest"] = [
            round(1e3 * one(scene.wakes_s)) for one in (statistics.median, max)
        ]
    return ledger


def deploy(server: ServerProcess, sleepers: Sleepers, name: str, revision: int = 0) -> None:
    """Deploy a function, or another revision of it."""
    sleepers.deploy(server, name, "--slow", f"{0.05 + revision * 1e-5:.5f}", tables=TABLES)


async def _deploy_all(server: ServerProcess, sleepers: Sleepers, names: list[str]) -> None:
    places = asyncio.Semaphore(DEPLOYS)

    async def deploy_one(name: str) -> None:
        async with places:
            await asyncio.to_thread(deploy, server, sleepers, name)

    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(deploy_one(name))
