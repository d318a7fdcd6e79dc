"""Resources that an idle server process holds: descriptors, memory, tasks, child processes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from runtime_image.proc import read_stat
from tests.support.caller import Caller

PROBE = {"PYTHONPATH": str(Path(__file__).parent / "probe")}
"""Environment of a server whose memory is compared between rounds."""
POLL_S = 0.1
SETTLE_S = 20.0
"""Max time in seconds until descriptors, tasks and processes are back at their former counts."""
LOOKS = 5
"""Number of memory samples, LOOK_S seconds apart. Their minimum counts."""
LOOK_S = 0.5


@dataclass(frozen=True)
class Footprint:
    """Resources of one process. `descriptors` is keyed by target; memory in KiB is resident (RSS)
    and proportional (PSS, shared pages divided by their users)."""

    rss_kib: int
    pss_kib: int
    descriptors: dict[str, int]
    tasks: int
    processes: int

    @property
    def counts(self) -> tuple[dict[str, int], int, int]:
        """Return the figures that must be exactly the same between rounds."""
        return self.descriptors, self.tasks, self.processes


async def pause(seconds: float) -> None:
    """Wait for `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()
    except TimeoutError:
        pass


async def until(
    asks: Callable[[], Awaitable[bool]], seconds: float, poll_s: float = POLL_S
) -> bool:
    """Poll a condition; return whether it became true within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            while not await asks():
                await pause(poll_s)
    except TimeoutError:
        return False
    return True


async def settled(caller: Caller, pid: int, before: Footprint | None) -> Footprint:
    """Return the footprint once its counts equal those of `before`, or after 20 s as it is. Without
    `before`, wait for two equal footprints in a row.

    Memory is the minimum of five samples in 2.5 s. Before each, SIGUSR1 makes the server collect
    garbage and trim its heap. The server must run with PROBE.
    """
    last = before or await look(caller, pid)

    async def is_as_before() -> bool:
        nonlocal last
        now = await look(caller, pid)
        same = now.counts == last.counts
        last = last if before else now
        return same

    await until(is_as_before, SETTLE_S)
    looks: list[Footprint] = []
    while len(looks) < LOOKS:
        os.kill(pid, signal.SIGUSR1)
        await pause(LOOK_S)
        looks.append(await look(caller, pid))
    rss_kib, pss_kib = min((one.rss_kib, one.pss_kib) for one in looks)
    return replace(looks[-1], rss_kib=rss_kib, pss_kib=pss_kib)


async def look(caller: Caller, pid: int) -> Footprint:
    """Return the current footprint."""
    return Footprint(
        memory_kib(pid, "Rss"),
        memory_kib(pid, "Pss"),
        descriptors(pid),
        int((await metrics(caller))["fngate_tasks"]),
        len(children(pid)),
    )


async def metrics(caller: Caller) -> dict[str, float]:
    """Return every sample of /metrics, summed over all labels except `le` and `reason`."""
    found: dict[str, float] = {}
    page = (await caller.get("/metrics")).body.decode()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            kept = [f"{k}={v}" for k, v in sample.labels.items() if k in ("le", "reason")]
            name = " ".join([sample.name, *kept])
            found[name] = found.get(name, 0.0) + sample.value
    return found


def descriptors(pid: int) -> dict[str, int]:
    """Count open descriptors by kind: socket, pipe, pidfd, or the path of a file.

    Databases are left out, their write-ahead logs are not: SQLite keeps the descriptor of a closed
    connection for the next one, as closing it would release the locks of other connections.
    """
    kinds: Counter[str] = Counter()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.endswith(".db"):
            continue
        kinds[re.sub(r":\[\d+\]$", "", target)] += 1
    return dict(sorted(kinds.items()))


def children(pid: int) -> list[int]:
    """Return the pids of child processes, zombies included."""
    stats = {folder.name: read_stat(str(folder)) for folder in Path("/proc").glob("[0-9]*")}
    return [int(name) for name, stat in stats.items() if stat is not None and stat.parent == pid]


def memory_kib(pid: int, name: str) -> int:
    """Return one field (Rss or Pss) summed over all mappings, in KiB (proc(5), smaps_rollup)."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    match = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    assert match is not None, text
    return int(match[1])
