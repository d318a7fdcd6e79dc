"""Clients that flood a server: gzip bombs, slow uploads, incomplete heads, mutated requests."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.calls import client
from tests.chaos.lagging import late
from tests.chaos.ledger import Ledger
from tests.support import models
from tests.support.caller import Caller
from tests.support.process_server import ServerProcess, server_process

HELD_MIB = 256
MEMORY_SHARE = 1.2
LATE_S = 0.1
ROW = {"inputs": {"x": [[1.0, 2.0, 3.0, 4.0]]}}


@dataclass(frozen=True)
class Dose:
    """Number of attackers of each kind, and duration of each attack."""

    bombs: int = 64
    uploads: int = 1000
    heads: int = 10_000
    mutants: int = 8
    seconds: float = 40.0
    late_s: float | None = LATE_S
    """Max event-loop lag in seconds (p99.9). None = not checked, for machines with other load."""


async def run(data: Path, dose: Dose) -> Ledger:
    """Flood the server. Calls must be answered, loop lag must be short and memory must be
    bounded."""
    ledger = Ledger("clients that flood", {"held_mib": HELD_MIB})
    for is_fast in (True, False):
        folder = data / str(is_fast)
        folder.mkdir()
        record = folder / "late"
        record.touch()
        settings = {"FN_FAST_FRONT": str(is_fast).lower(), "FN_HELD_MIB": str(HELD_MIB)}
        program = (sys.executable, "-m", "tests.chaos.lagging", str(record))
        with server_process(folder / "data", environment=settings, program=program) as server:
            async with client(server) as caller:
                await caller.deploy(models.add_one(folder), name="affine")
                for kind in ("bombs", "uploads", "heads", "mutants"):
                    named = f"{kind}, {'fast' if is_fast else 'plain'}"
                    await _flood(ledger, named, (server, caller, record), dose)
            for line in list(server.complaints)[:5]:
                ledger.violated(f"the server's log: {line.rstrip()[-400:]}")
    return ledger


async def _flood(
    ledger: Ledger, named: str, served: tuple[ServerProcess, Caller, Path], dose: Dose
) -> None:
    server, caller, record = served
    kind = named.partition(",")[0]
    assert server.process is not None
    pid = server.process.pid
    idle = rss_mib(pid)
    command = ("-m", "tests.chaos.attackers", kind, server.url.rpartition(":")[2])
    attackers = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        str(getattr(dose, kind)),
        str(dose.seconds),
        stdout=asyncio.subprocess.PIPE,
    )
    assert attackers.stdout is not None
    await attackers.stdout.readline()
    began_s, most, statuses, slowest = time.monotonic(), idle, dict[int, int](), 0.0
    while attackers.returncode is None and time.monotonic() < began_s + 3 * dose.seconds + 60:
        asked_s = time.monotonic()
        answer = await caller.call("affine", ROW)
        slowest = max(slowest, time.monotonic() - asked_s)
        statuses[answer.status] = statuses.get(answer.status, 0) + 1
        most = max(most, rss_mib(pid))
        await asyncio.sleep(0.01)
    said = (await attackers.stdout.read()).decode()
    await attackers.wait()
    await asyncio.sleep(1.5)  # until the server has written its lag record
    times = late(record, began_s) or [0.0]
    high = times[int(len(times) * 0.999)]
    ledger.figures[named] = (
        f"loop late by p99.9 {high * 1e3:.1f} ms, at most {times[-1] * 1e3:.1f} ms; memory"
        f" {idle} MiB idle, {most} MiB at most; calls {statuses}, slowest {slowest * 1e3:.0f} ms"
    )
    if dose.late_s is not None:
        ledger.require(high < dose.late_s, f"{named}: the loop was late by {high:.3f} s")
    most_wanted = idle + MEMORY_SHARE * HELD_MIB
    ledger.require(most <= most_wanted, f"{named}: {most} MiB of {most_wanted:.0f}")
    ledger.require(set(statuses) == {200}, f"{named}: calls got {statuses}")
    if kind == "mutants":
        lines = said.splitlines()
        counts = [line.split() for line in lines if line.startswith("mutants ")]
        ledger.figures[f"{named}, sent"] = sum(int(words[1]) for words in counts)
        ledger.require(
            bool(counts) and not any(int(words[3]) for words in counts), f"{named}: {said[:500]}"
        )


def rss_mib(pid: int) -> int:
    """Return the resident memory of a process in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(x.split()[1]) for x in status.splitlines() if x.startswith("VmRSS")) // 1024
