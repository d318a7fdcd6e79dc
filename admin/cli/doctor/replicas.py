"""Checks of the replicas that run now."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from admin.cli.doctor.check import Check

NAME: Final = "replica filter"
FILTERED: Final = "2"
"""SECCOMP_MODE_FILTER, as proc_pid_status(5) shows it."""
PROGRAM: Final = b"runtime_image"


def of_processes(run: Path) -> list[int]:
    """The replicas of the server with the run folder `run` that are processes of this machine."""
    from pool_manager.drivers import groups
    from pool_manager.drivers.process import MODULE

    try:
        found = groups.find(run, MODULE)
    except OSError:
        return []
    for group in found.values():
        group.close()
    return [group.pid for group in found.values()]


def system_calls(pids: Collection[int], proc: Path = Path("/proc")) -> list[Check]:
    """Every replica among these processes has its filter of system calls; no check without any.

    `proc` is where the kernel tells of processes. Others of a container, like its init, are passed
    over.
    """
    found = {pid: status for pid in pids if (status := _status(proc / str(pid)))}
    if not found:
        return []
    modes = {pid: status.get("Seccomp", "unknown") for pid, status in found.items()}
    for pid, mode in modes.items():
        if mode != FILTERED:
            text = f"process {pid} has Seccomp: {mode}, expected {FILTERED}"
            return [Check("fail", NAME, text, "build its image again: fnctl image build cpu")]
    count = len(found)
    return [Check("ok", NAME, f"Seccomp: {FILTERED} in {count} running replica{'s' * (count > 1)}")]


def _status(process: Path) -> dict[str, str]:
    """Of a replica what the kernel says of it; empty for anything else."""
    try:
        if PROGRAM not in (process / "cmdline").read_bytes().split(b"\0"):
            return {}
        lines = (process / "status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
