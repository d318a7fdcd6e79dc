"""What the server of a starting replica has done: CPU time, bytes, log lines, GPU memory.

Read from outside, so that it holds for processes and for containers of this machine alike. The
sidecar is left out: it works for the probes alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pool_manager.core.starts import READ_S, Activity
from pool_manager.host import HostOf
from pool_manager.replicas.logs import PIECE, read_log
from pool_manager.replicas.output import TAIL_LINES, ReplicaOutput
from pool_manager.replicas.run_folders import tail_lines
from registry.errors import DriverError
from runtime_image.proc import ProcessActivity, activity

PIDS_MAX: Final = 10_000
"""Max processes that are looked at; of a server with more, nothing is known."""
_SIDECAR: Final = b"\0-m\0runtime_image\0"
"""In the command line of a sidecar and of its reaper (`drivers/process.py`, `docker/spec.py`)."""
_PATH_PART: Final = r"[\w/.~%-]"


@dataclass(slots=True)
class _Log:
    """How far the log of a replica was read."""

    place: int = 0
    """Offset of the first byte that was not read."""
    lines: int = 0
    """Lines before it, without those that name the path of the probe."""


class ActivityReader:
    """Reads the activities of replicas. `gpu_mib(id)` returns the MiB in use on a replica's GPU,
    None without one."""

    def __init__(
        self,
        host_of: HostOf,
        output: ReplicaOutput,
        gpu_mib: Callable[[str], float | None],
        clock: Callable[[], float],
    ) -> None:
        self._host_of = host_of
        self._output = output
        self._gpu_mib = gpu_mib
        self._clock = clock
        self._logs: dict[str, _Log] = {}
        self._due_s: dict[str, float] = {}

    def is_due(self, id: str) -> bool:
        """Whether the last activity of a replica was read READ_S ago, or none was; it counts as
        read from now on."""
        now = self._clock()
        if now < self._due_s.get(id, now):
            return False
        self._due_s[id] = now + READ_S
        return True

    def forget(self, id: str) -> None:
        """Drop what is known of a replica."""
        self._logs.pop(id, None)
        self._due_s.pop(id, None)

    async def read(self, id: str, probed: str) -> Activity | None:
        """Return the activity of a replica whose probes ask for the path `probed`; None if its
        processes are unknown, as on another host."""
        try:
            pids = await self._host_of(id).processes.pids(id)
        except DriverError:
            return None
        if not pids or len(pids) > PIDS_MAX:
            return None
        await self._output.save(id)
        if id not in self._due_s:  # forgotten meanwhile
            return None
        log = self._output.logs.get(id)
        known = self._logs.setdefault(id, _Log())
        read = await asyncio.to_thread(_read, pids, log, known, probed)
        return read._replace(gpu_mib=self._gpu_mib(id)) if read is not None else None


def _read(pids: Iterable[int], log: Path | None, known: _Log, probed: str) -> Activity | None:
    """Read processes and log; None if the pids are not this machine's. Blocking."""
    found = used(pids)
    if found is None:
        return None
    did, io_bytes = found
    tail: tuple[str, ...] = ()
    if log is not None:
        with contextlib.suppress(OSError):
            known.place, more = count_lines(log, known.place, probed)
            known.lines += more
            tail = tail_lines(log, TAIL_LINES)
    return Activity(
        did.cpu_s,
        io_bytes,
        known.lines,
        log_tail=tail,
        is_waiting=did.is_waiting,
        is_traced=did.is_traced,
    )


def used(
    pids: Iterable[int], root: Path = Path("/proc")
) -> tuple[ProcessActivity, int | None] | None:
    """Return what these processes but sidecars do, and the bytes that they have read and written
    (proc_pid_io(5)), None if this user may not read these.

    Returns None without a sidecar among them: the engine runs in another machine, whose pids are
    those of strangers here.
    """
    folders: list[str] = []
    io_bytes, is_readable, has_sidecar = 0, True, False
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, IndexError, ValueError):
            folder = root / str(pid)
            if _SIDECAR in (folder / "cmdline").read_bytes():
                has_sidecar = True
                continue
            folders.append(str(folder))
            try:
                rows = (folder / "io").read_text().split()
                io_bytes += int(rows[1]) + int(rows[3])
            except PermissionError:
                is_readable = False
    return (activity(folders), io_bytes if is_readable else None) if has_sidecar else None


def count_lines(log: Path, place: int, probed: str) -> tuple[int, int]:
    """Return the offset behind the lines that a log has from `place` on, PIECE bytes at most, and
    their number without those that name the path `probed`: many servers log each request, and the
    sidecar logs what its probes meet. Raises OSError."""
    start, data = read_log(log, place, PIECE)
    whole, newline, rest = data.rpartition(b"\n")
    if not newline and len(data) < PIECE:
        return start, 0  # a line that is not at its end yet
    if not newline:
        whole, rest = rest, b""
    pattern = rf"(?<!{_PATH_PART}){re.escape(probed)}(?!{_PATH_PART})"
    named = re.compile(pattern.encode())
    lines = whole.split(b"\n")
    return start + len(data) - len(rest), sum(named.search(line) is None for line in lines)
