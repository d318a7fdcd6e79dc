"""Processes that carry the marker of a replica: what a server left behind outside of its group.

A server may start processes in sessions of their own, which no signal to the sidecar's group
reaches. Every process of a server has the marker in its environment, `contract.server.MARKER`: the
path of its replica's run folder. The path tells replicas of several data folders apart. A process
may remove it; in a PID namespace of its own it ends with the namespace all the same
(`runtime_image/server/reaper.py`).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, NamedTuple

from pool_manager.drivers.process_groups import below, is_of, pids, read
from registry.errors import DriverError
from runtime_image.contract.server import MARKER

POLL_MS: Final = 20.0
EMPTY_SCANS: Final = 2
"""Scans in a row that must find nothing: a process has no environment while it executes another
program (execve(2))."""
_PREFIX: Final = MARKER.encode() + b"="


def marked(run_root: Path) -> dict[str, frozenset[int]]:
    """Return the pids of this user's processes with a marker of the folder `run_root`, by replica
    id. Raises OSError if /proc cannot be read."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    own, uid = os.getpid(), os.getuid()
    for pid in pids():
        run_dir = _run_dir(pid)
        if run_dir is not None and run_dir.parent == run_root and pid != own and is_of(pid, uid):
            found[run_dir.name].add(pid)
    return {id: frozenset(those) for id, those in found.items()}


def end_marked(
    run_root: Path,
    ids: Collection[str],
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Kill the marked processes of these replicas and those that they start meanwhile; return when
    none is left. Blocks.

    Raises DriverError if one survives for `limit_s` or may not be killed, OSError if /proc cannot
    be read.
    """
    until_s, empty = clock() + limit_s, 0
    while empty < EMPTY_SCANS:
        if empty:
            select.poll().poll(POLL_MS)
        there = marked(run_root)
        doomed = {pid: run_root / id for id in ids for pid in there.get(id, ())}
        if not doomed:
            empty += 1
            continue
        if clock() >= until_s:
            names = ", ".join(map(str, sorted(doomed)))
            raise DriverError(f"processes of a server survive KILL: {names}")
        empty = 0
        _kill(doomed)


class Held(NamedTuple):
    """Pidfds of a replica's processes by pid. Those of `sure` are the replica's; another one of
    `every` may belong to a process that got the pid of one that has ended."""

    every: dict[int, int]
    sure: dict[int, int]

    def kill(self) -> None:
        """Kill those that are sure. Raises DriverError."""
        for pid, fd in self.sure.items():
            _send_kill(pid, fd)

    def close(self) -> None:
        """Close the pidfds."""
        for fd in self.every.values():
            os.close(fd)


def hold(run_root: Path, id: str, leader: int) -> Held:
    """Return the processes with the marker of a replica, and those below its first process,
    `leader`, 0 for none.

    A process that is ending has no environment any more, but may still have a device open: only a
    pidfd from before shows its end. One that has removed its marker is found only as long as the
    leader runs. Raises OSError if /proc cannot be read.
    """
    held = {}
    for pid in _of(run_root, id, leader):
        with contextlib.suppress(ProcessLookupError):
            held[pid] = os.pidfd_open(pid)
    # Read again: a pid may have been reused before its pidfd was opened.
    sure = _of(run_root, id, leader)
    return Held(held, {pid: fd for pid, fd in held.items() if pid in sure})


def _of(run_root: Path, id: str, leader: int) -> frozenset[int]:
    there = marked(run_root).get(id, frozenset()) - {leader}
    return there | below(leader) if leader else there


def await_ends(
    pidfds: Collection[int], limit_s: float, clock: Callable[[], float] = time.monotonic
) -> None:
    """Wait until these processes have ended. Blocks. Raises DriverError after `limit_s`."""
    until_s = clock() + limit_s
    for fd in pidfds:
        end = select.poll()
        end.register(fd, select.POLLIN)
        if not end.poll(max(0.0, until_s - clock()) * 1e3):
            raise DriverError("a process of a server does not end after KILL")


def _kill(doomed: dict[int, Path]) -> None:
    """Kill processes through pidfds, so that no reused pid is hit, and give them POLL_MS to end."""
    ends = select.poll()
    held = []
    try:
        for pid, run_dir in doomed.items():
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            held.append(fd)
            # Read again: the pid may have been reused before the pidfd was opened.
            if _run_dir(pid) == run_dir:
                _send_kill(pid, fd)
                ends.register(fd, select.POLLIN)
        if held:
            ends.poll(POLL_MS)
    finally:
        for fd in held:
            os.close(fd)


def _send_kill(pid: int, fd: int) -> None:
    try:
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise DriverError(f"cannot end process {pid} of a server: {error}") from error


def _run_dir(pid: int) -> Path | None:
    """Return the run folder in a process's marker; None without a marker, for a zombie, and if the
    environment is not ours to read."""
    for entry in read(pid, "environ").split(b"\0"):
        if entry.startswith(_PREFIX):
            return Path(os.fsdecode(entry.removeprefix(_PREFIX)))
    return None
