"""Hostile clients on every way in: the longest step of the event loop, the longest silence of
`/healthz`, and the growth of memory.

Each attack runs in pairs of an idle interval and an attack. One server has asyncio's event loop
with a probe around its selector, which measures steps in thread CPU time. The other one has its
usual loop; silence and memory are measured there.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median

from tests.chaos.calls import client
from tests.chaos.floods import rss_mib
from tests.chaos.ledger import Ledger
from tests.support import models
from tests.support.caller import Caller
from tests.support.grpc_server import free_port
from tests.support.process_server import ServerProcess, server_process
from tests.support.worker_server import worker_pids

PROBE = str(Path(__file__).parent / "step_probe")
STEP_MS_MAX = 20.0
SILENCE_MS_MAX = 100.0
SMALL_MIB, USUAL_MIB = 64, 256
"""Values of FN_HELD_MIB. A message of 63 MiB is possible with the usual one only."""
HALVES_MIB_MAX = 64.0
WIDE = 4_000_000
"""Columns of an answer of 16 MB."""


@dataclass(frozen=True)
class Attack:
    """One kind of hostile client, in `module`. `held_mib`: the server's FN_HELD_MIB; `most_mib`:
    how much the server may grow, None for what follows from `held_mib`."""

    kind: str
    count: int
    module: str = "tests.chaos.attackers"
    held_mib: int = SMALL_MIB
    most_mib: float | None = None

    @property
    def memory_mib(self) -> float:
        """How much the resident memory of a process may grow."""
        return self.held_mib * 1.2 + 32 if self.most_mib is None else self.most_mib


GRPC = "tests.chaos.grpc_attackers"
ATTACKS = (
    Attack("bombs", 8),
    Attack("loads", 6, GRPC, USUAL_MIB),
    Attack("keyed-loads", 6, GRPC, USUAL_MIB),
    Attack("infers", 6, GRPC, USUAL_MIB),
    Attack("cold-bodies", 2),
    Attack("cold-gzips", 2),
    Attack("tomls", 9),
    Attack("uploads", 100),
    Attack("sleepers", 150),
    Attack("halves", 200, GRPC, SMALL_MIB, HALVES_MIB_MAX),
    Attack("watches", 1600, GRPC),
)


@dataclass(frozen=True)
class Dose:
    """`pairs` of an idle interval and an attack, `seconds` each. `kinds`: empty for all attacks."""

    pairs: int = 5
    seconds: float = 6.0
    workers: tuple[int, ...] = (1, 2)
    kinds: tuple[str, ...] = ()
    is_timed: bool = True
    """Whether steps and silence count. False for machines with other load."""


async def run(data: Path, dose: Dose) -> Ledger:
    """Attack servers with one and more workers, with the probe and without it."""
    ledger = Ledger("hostile clients and the loop's steps")
    for workers, held_mib, is_probed in product(
        dose.workers, (SMALL_MIB, USUAL_MIB), (True, False)
    ):
        attacks = [one for one in ATTACKS if one.held_mib == held_mib]
        chosen = [one for one in attacks if not dose.kinds or one.kind in dose.kinds]
        if chosen:
            folder = data / f"{workers}-{held_mib}-{is_probed}"
            folder.mkdir()
            await _serve(ledger, folder, dose, (workers, held_mib), chosen, is_probed=is_probed)
    return ledger


async def _serve(
    ledger: Ledger,
    folder: Path,
    dose: Dose,
    sizes: tuple[int, int],
    attacks: Sequence[Attack],
    *,
    is_probed: bool,
) -> None:
    workers, held_mib = sizes
    steps, port = folder / "steps", free_port()
    steps.touch()
    settings = {"FN_HELD_MIB": str(held_mib), "FN_WORKERS": str(workers), "FN_GRPC_PORT": str(port)}
    if is_probed:
        settings |= {"PYTHONPATH": PROBE, "STEPS_FILE": str(steps)}
    with server_process(folder / "data", environment=settings) as server:
        async with client(server) as caller:
            await _deploy(caller, folder)
            scene = Scene(ledger, server, port, dose, workers)
            for attack in attacks:
                await scene.play(attack, steps if is_probed else None)
        for line in list(server.complaints)[:5]:
            ledger.violated(f"the server's log: {line.rstrip()[-600:]}")


async def _deploy(caller: Caller, folder: Path) -> None:
    await caller.deploy(models.add_one(folder), name="affine")
    await caller.deploy(models.add_one(folder), name="cold")
    nodes = f"""
        first = Constant <value = int64[1] {{0}}> ()
        column = Gather <axis = 1> (x, first)
        size = Constant <value = int64[2] {{1, {WIDE}}}> ()
        y = Expand(column, size)
    """
    wide = models.written(folder, "wide", f"({models.ROW} x) => (float[n,{WIDE}] y)", nodes)
    await caller.deploy(wide, name="wide")


class Scene:
    """Attacks on one server."""

    def __init__(
        self, ledger: Ledger, server: ServerProcess, port: int, dose: Dose, workers: int
    ) -> None:
        self._ledger = ledger
        self._server = server
        self._port = port
        self._dose = dose
        self._workers = workers

    async def play(self, attack: Attack, steps: Path | None) -> None:
        """Play the pairs of one attack. `steps`: the probe's file, None without a probe."""
        workers = "1 process" if self._workers == 1 else f"{self._workers} workers"
        named = f"{attack.kind} x {attack.count}, {workers}"
        began_s, pairs, growth, said = time.monotonic(), [], 0.0, ""
        for _ in range(1 if steps else self._dose.pairs):
            idle_ms, _ = await self._silence()
            before = self._memory()
            attackers = await self._attack(attack)
            watching = asyncio.ensure_future(self._most_memory(attackers))
            most_ms, failed = await self._silence()
            assert attackers.stdout is not None
            said = (await attackers.stdout.read()).decode().strip()
            await attackers.wait()
            after = await watching
            growth = max(growth, *(after[pid] - before[pid] for pid in before if pid in after))
            pairs.append((idle_ms, most_ms))
            self._ledger.require(not failed, f"{named}: {failed} requests of /healthz failed")
        if steps is not None:
            self._judge_steps(named, steps, began_s)
        else:
            self._judge(attack, named, pairs, growth)
        if said:
            self._ledger.figures[f"{named}, answers"] = said

    def _judge(
        self, attack: Attack, named: str, pairs: list[tuple[float, float]], growth: float
    ) -> None:
        more = [most - idle for idle, most in pairs]
        shown = ", ".join(f"{idle:.0f}/{most:.0f}" for idle, most in pairs)
        self._ledger.figures[named] = (
            f"silence idle/attacked in ms {shown}; median {median(more):.0f} ms more, at most"
            f" {max(more):.0f}; memory {growth:.0f} MiB more"
        )
        if self._dose.is_timed:
            text = f"{named}: /healthz was silent for {max(more):.0f} ms more"
            self._ledger.require(max(more) <= SILENCE_MS_MAX, text)
        text = f"{named}: memory grew by {growth:.0f} MiB, allowed are {attack.memory_mib:.0f}"
        self._ledger.require(growth <= attack.memory_mib, text)

    def _judge_steps(self, named: str, steps: Path, began_s: float) -> None:
        lines = [json.loads(line) for line in steps.read_text().splitlines()]
        during = [line for line in lines if line["at_s"] >= began_s]
        longest = max(during, key=lambda line: float(line["ms"]), default={"ms": 0.0})
        self._ledger.figures[f"{named}, longest step"] = longest
        if self._dose.is_timed:
            text = f"{named}: a step took {longest['ms']} ms"
            self._ledger.require(longest["ms"] <= STEP_MS_MAX, text)

    async def _attack(self, attack: Attack) -> asyncio.subprocess.Process:
        is_grpc = attack.module == GRPC
        port = str(self._port) if is_grpc else self._server.url.rpartition(":")[2]
        command = ["-m", attack.module, attack.kind, port, str(attack.count)]
        attackers = await asyncio.create_subprocess_exec(
            sys.executable,
            *(*command, str(self._dose.seconds), self._server.token),
            stdout=asyncio.subprocess.PIPE,
            env={"TOKEN": self._server.token},
        )
        assert attackers.stdout is not None
        await attackers.stdout.readline()
        return attackers

    async def _silence(self) -> tuple[float, int]:
        """Return the longest silence of `/healthz` in milliseconds, and its failures."""
        port = self._server.url.rpartition(":")[2]
        asking = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.chaos.silence", port, str(self._dose.seconds)),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await asking.communicate()
        most, _, failed = output.split()
        return float(most), int(failed)

    def _memory(self) -> dict[int, int]:
        assert self._server.process is not None
        pids = [self._server.process.pid, *worker_pids(self._server.process.pid)]
        return {pid: rss_mib(pid) for pid in pids}

    async def _most_memory(self, attackers: asyncio.subprocess.Process) -> dict[int, int]:
        """Return the most memory of each process until the attackers end."""
        most = self._memory()
        while attackers.returncode is None:
            for pid, mib in self._memory().items():
                most[pid] = max(mib, most.get(pid, 0))
            await asyncio.sleep(0.02)
        return most
