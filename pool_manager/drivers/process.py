"""Replicas as processes of this host: one process group each."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pool_manager.driver import OnEngineLost, OnExit
from registry.errors import DriverError
from runtime_image.contract.control import ReplicaRecord

GONE_S = 5.0
"""How long a killed group may take to vanish."""
GONE_POLL_S = 0.005
MODULE = "runtime_image"


@dataclass(slots=True)
class _Process:
    """A replica's first process, whose pid is its group's id. `child` is None if adopted."""

    pid: int
    pidfd: int
    child: subprocess.Popen[bytes] | None
    is_told: bool = False


class ProcessDriver:
    """Starts `python -I -m runtime_image RUN_DIR` in a session of its own.

    No parent-death signal is set, since replicas must outlive a manager that is restarted.
    """

    kind = "process"
    replica_user: tuple[int, int] | None = None
    """They are the server's own."""

    def __init__(self, run_root: Path, *, python: str = sys.executable) -> None:
        """`run_root` holds the run folders: by their paths adopted processes are recognised.
        `python` is the interpreter that replicas run in."""
        self._run_root = run_root
        self._python = python
        self._processes: dict[str, _Process] = {}
        self.on_exit: OnExit = lambda _id, _how: None
        self.on_engine_lost: OnEngineLost = lambda _reason: None

    def model_path(self, model_dir: Path) -> str:
        """The folder itself."""
        return str(model_dir)

    async def start(self, record: ReplicaRecord, run_dir: Path, log: Path) -> None:
        """Launch; the memory cap limits private memory, not mapped weights (RLIMIT_DATA)."""
        try:
            child = await asyncio.to_thread(_launch, self._python, record, run_dir, log)
        except OSError as error:
            raise DriverError(f"cannot start a replica: {error}") from error
        self._watch(record.id, child.pid, child)

    async def limit(self, record: ReplicaRecord) -> None:
        """Cap private memory from now on; what the process holds already stays."""
        process = self._processes.get(record.id)
        if process is None or _has_ended(process):
            raise DriverError(f"cannot limit {record.id}: it does not run")
        try:
            _cap(process.pid, record.memory_mib)
        except OSError as error:
            raise DriverError(f"cannot limit {record.id}: {error}") from error

    async def save_log(self, id: str, log: Path) -> None:
        """Processes write to their logs themselves."""

    async def list(self) -> set[str]:
        """Adopt what runs in a run folder of ours and is not known yet."""
        running = await asyncio.to_thread(_running, self._run_root)
        for id, pid in running.items():
            if id not in self._processes:
                with contextlib.suppress(ProcessLookupError):
                    self._watch(id, pid, None)
        return running.keys() & self._processes.keys()

    async def pids(self, id: str) -> frozenset[int] | None:
        """The processes of its group."""
        process = self._processes.get(id)
        if process is None:
            return frozenset()
        return await asyncio.to_thread(_members, process.pid)

    async def terminate(self, id: str) -> None:
        """TERM to the whole group."""
        self._signal(id, signal.SIGTERM)

    async def release(self, id: str) -> None:
        """KILL the group and wait until no process of it is left."""
        process = self._processes.get(id)
        if process is None:
            return
        self._signal(id, signal.SIGKILL)
        try:
            async with asyncio.timeout(GONE_S):
                while _group_lives(process):  # noqa: ASYNC110 - a group has no event
                    await asyncio.sleep(GONE_POLL_S)
        except TimeoutError:
            raise DriverError(f"process group {process.pid} survives KILL") from None
        self._exited(id)
        self._forget(id)

    async def close(self) -> None:
        """Stop watching; the processes go on."""
        for id in list(self._processes):
            self._forget(id)

    def _watch(self, id: str, pid: int, child: subprocess.Popen[bytes] | None) -> None:
        process = _Process(pid, os.pidfd_open(pid), child)
        self._processes[id] = process
        asyncio.get_running_loop().add_reader(process.pidfd, self._exited, id)

    def _exited(self, id: str) -> None:
        """Once: either the loop sees the end first, or whoever released it."""
        process = self._processes[id]
        asyncio.get_running_loop().remove_reader(process.pidfd)
        if process.is_told:
            return
        process.is_told = True
        code = process.child.poll() if process.child else None
        self.on_exit(id, _how(code))

    def _signal(self, id: str, number: signal.Signals) -> None:
        process = self._processes.get(id)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def _forget(self, id: str) -> None:
        process = self._processes.pop(id)
        asyncio.get_running_loop().remove_reader(process.pidfd)
        os.close(process.pidfd)
        if process.child is not None and process.child.poll() is None:
            # Left running for adoption: Popen must not complain that nobody waited for it.
            process.child.returncode = 0


def _launch(
    python: str, record: ReplicaRecord, run_dir: Path, log: Path
) -> subprocess.Popen[bytes]:
    environment = {
        "HOME": str(run_dir),
        "LANG": "C.UTF-8",
        "PATH": os.defpath,
        "OMP_NUM_THREADS": str(record.threads),
        "ORT_DISABLE_TELEMETRY": "1",
    }
    if record.device_kind == "cuda":
        # CUDA takes UUIDs, of GPUs and of MIG slices: the replica sees this one alone.
        environment["CUDA_VISIBLE_DEVICES"] = record.device
    with log.open("ab") as output:
        # -I ignores the caller's PYTHON* variables: PYTHONDONTWRITEBYTECODE would make every
        # cold start compile its libraries again.
        child = subprocess.Popen(
            # -u: what a handler prints is in the log when it is asked for, not when it exits.
            [python, "-I", "-u", "-m", MODULE, str(run_dir)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=run_dir,
            env=environment,
            start_new_session=True,
        )
    with contextlib.suppress(ProcessLookupError):
        _cap(child.pid, record.memory_mib)
    return child


def _cap(pid: int, memory_mib: int) -> None:
    """Limit a process's private memory for good; 0 leaves it as it is."""
    if memory_mib:
        cap = memory_mib * 2**20
        resource.prlimit(pid, resource.RLIMIT_DATA, (cap, cap))


def _has_ended(process: _Process) -> bool:
    ended = select.poll()
    ended.register(process.pidfd, select.POLLIN)
    return bool(ended.poll(0))


def _group_lives(process: _Process) -> bool:
    """Whether any process of the group still runs.

    Remains (zombies) hold nothing, and whoever has to wait for them may be an init that never
    does; those of this very process's children are waited for here.
    """
    if not _has_ended(process):
        return True
    if process.child is not None:
        process.child.poll()
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-process.pid, os.WNOHANG)[0]:
            pass
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return any(_runs_in(entry.path, process.pid) for entry in _all_processes())


def _runs_in(entry: str, group: int) -> bool:
    """Read off /proc/PID/stat, "pid (comm) state ppid pgrp ..." (proc(5))."""
    try:
        fields = Path(entry, "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[2]) == group and fields[0] not in "ZX"


def _members(group: int) -> frozenset[int]:
    return frozenset(int(entry.name) for entry in _all_processes() if _runs_in(entry.path, group))


def _all_processes() -> Iterator[os.DirEntry[str]]:
    with os.scandir("/proc") as entries:
        yield from (entry for entry in entries if entry.name.isdecimal())


def _running(run_root: Path) -> dict[str, int]:
    """Replica ids and pids, read off the command lines (proc(5))."""
    found: dict[str, int] = {}
    for entry in _all_processes():
        with contextlib.suppress(OSError):
            arguments = Path(entry.path, "cmdline").read_bytes().split(b"\0")
            if len(arguments) < 5 or arguments[-3] != MODULE.encode():
                continue
            run_dir = Path(os.fsdecode(arguments[-2]))
            if run_dir.parent == run_root:
                found[run_dir.name] = int(entry.name)
    return found


def _how(code: int | None) -> str:
    if code is None:
        return "exited"
    if code >= 0:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
