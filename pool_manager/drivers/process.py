"""Process driver: each replica is a process group on this host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from pathlib import Path

from pool_manager.driver import EngineLosses, Exit, Exits, Processes
from pool_manager.drivers.marked import await_ends, end_marked, hold, marked
from pool_manager.drivers.process_groups import ProcessGroup, below, find, members
from pool_manager.images import Images
from pool_manager.ports import ServerContainer
from registry.errors import DriverError
from registry.model.hosts import Ability
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.server import ENGINE, MARKER, SEVERAL_GPUS, VISIBLE_DEVICES

GONE_S = 5.0
"""Time limit for a killed process group to disappear."""
GONE_POLL_S = 0.005
MODULE = "runtime_image"
NOFILE_MAX = 4096
"""Max open files of a replica. The server may have raised its own limit far beyond that."""
SERVER_NOFILE_MAX = 65_536
"""Max open files of a sidecar, which holds two for each exchange, and of the server that it
starts."""


class ProcessDriver:
    """Starts each replica as `python -I -m runtime_image RUN_DIR` in its own session.

    No parent-death signal is set, since replicas must survive a restart of the manager.
    """

    kind = "process"
    is_contained = False
    abilities = frozenset({Ability.COMMAND, Ability.PACKAGES})
    images: Images | None = None

    def __init__(
        self,
        run_root: Path,
        *,
        python: str = sys.executable,
        server_path: str = os.defpath,
        visible: Callable[[Sequence[str]], str] = ",".join,
    ) -> None:
        """`run_root` contains the run folders, whose paths identify processes to adopt. `python` is
        the interpreter of replicas, `server_path` the PATH of servers. `visible` returns the value
        of CUDA_VISIBLE_DEVICES for GPUs, as `Gpus.visible`."""
        self._run_root = run_root
        self._python = python
        self._server_path = server_path
        self._visible = visible
        self._models: set[str] = set()
        self._groups: dict[str, ProcessGroup] = {}
        self._reported: set[str] = set()
        self.processes: Processes = GroupProcesses(run_root, self._groups, self._models)
        self.exits, self.engine_losses = Exits(), EngineLosses()

    def model_path(self, model_dir: Path) -> str:
        """Return the folder itself."""
        return str(model_dir)

    async def start(
        self,
        record: ReplicaRecord,
        run_dir: Path,
        log: Path,
        server: ServerContainer | None = None,
    ) -> None:
        """Launch a replica. The memory cap limits private memory, not mapped weights (RLIMIT_DATA).
        A sidecar adds up the memory of its server's processes itself. Raises DriverError for a
        server that is apart."""
        if server is not None:
            raise DriverError(
                "an image as a function needs the driver docker: set FN_DRIVER=docker"
            )
        # -I ignores the caller's PYTHON* variables: with PYTHONDONTWRITEBYTECODE every cold start
        # would compile its libraries again.
        # -u: a handler's output appears in the log at once, not only at its exit.
        command = [self._python, "-I", "-u", "-m", MODULE, str(run_dir)]
        environment = self._environment(record, run_dir)
        try:
            group = await asyncio.to_thread(_launch, command, environment, record, run_dir, log)
        except OSError as error:
            raise DriverError(f"cannot start a replica: {error}") from error
        if record.engine != ENGINE:
            self._models.add(record.id)
        self._watch(record.id, group)

    async def limit(self, record: ReplicaRecord) -> None:
        """Cap private memory from now on; memory that the process already holds is not affected.
        A sidecar has its cap in its record."""
        group = self._groups.get(record.id)
        if group is None or group.has_ended():
            raise DriverError(f"cannot limit {record.id}: it does not run")
        if record.engine == ENGINE:
            return
        try:
            _cap(group.pid, record.memory_mib)
        except OSError as error:
            raise DriverError(f"cannot limit {record.id}: {error}") from error

    async def save_log(self, id: str, log: Path) -> None:
        """Do nothing: processes write to their logs themselves."""

    async def list(self) -> set[str]:
        """Return the replicas that run in our run folders; adopt those not known yet. Kills what is
        left of servers whose sidecar has ended; a later `release` reports what survives."""
        try:
            # Read first: a sidecar that starts meanwhile is among the running replicas.
            there = await asyncio.to_thread(marked, self._run_root)
            running = await asyncio.to_thread(find, self._run_root, MODULE)
        except OSError as error:
            raise DriverError(f"cannot list running replicas: {error}") from error
        orphans = there.keys() - running.keys() - self._groups.keys()
        with contextlib.suppress(DriverError, OSError):
            await self._end_marked(orphans)
        for id, group in running.items():
            if id in self._groups:
                group.close()
            else:
                self._watch(id, group)
        return set(running)

    async def terminate(self, id: str) -> None:
        """Send TERM to the whole process group."""
        self._signal(id, signal.SIGTERM)

    async def release(self, id: str) -> None:
        """Kill the process group and, of a server, what left the group; wait until no process is
        left."""
        group = self._groups.get(id)
        if id in self._models:
            if group is not None:
                await self._end_group(id, group)
        else:
            try:
                await self._end_server(id, group)
            except OSError as error:
                raise DriverError(f"cannot verify that {id} has ended: {error}") from error
        if group is not None:
            # Until here the pid was reserved for the group, so no signal could hit another process.
            group.reap()
            self._forget(id)

    async def _end_group(self, id: str, group: ProcessGroup) -> None:
        self._signal(id, signal.SIGKILL)
        try:
            async with asyncio.timeout(GONE_S):
                while group.is_running():  # noqa: ASYNC110 - a group has no event
                    await asyncio.sleep(GONE_POLL_S)
        except TimeoutError:
            raise DriverError(f"process group {group.pid} survives KILL") from None
        except OSError as error:
            raise DriverError(f"cannot verify that {id} has ended: {error}") from error
        self._exited(id)

    async def _end_server(self, id: str, group: ProcessGroup | None) -> None:
        leader = group.pid if group is not None and not group.has_ended() else 0
        held = await asyncio.to_thread(hold, self._run_root, id, leader)
        try:
            if group is not None:
                await self._end_group(id, group)
            held.kill()
            await self._end_marked({id})
            await asyncio.to_thread(await_ends, held.every.values(), GONE_S)
        finally:
            held.close()

    async def _end_marked(self, ids: Set[str]) -> None:
        if ids:
            await asyncio.to_thread(end_marked, self._run_root, ids, GONE_S)

    async def close(self) -> None:
        """Stop watching; the processes continue to run."""
        for id in list(self._groups):
            self._forget(id)

    def _environment(self, record: ReplicaRecord, run_dir: Path) -> dict[str, str]:
        environment = {
            "HOME": str(run_dir),
            "LANG": "C.UTF-8",
            "PATH": os.defpath,
            "OMP_NUM_THREADS": str(record.threads),
        }
        if record.engine == ENGINE:
            environment |= {"PATH": self._server_path, MARKER: str(run_dir)}
        else:
            environment["ORT_DISABLE_TELEMETRY"] = "1"
        if record.device_kind == "cuda":
            # The replica sees only these devices.
            environment[VISIBLE_DEVICES] = self._visible(record.devices)
            if len(record.devices) > 1:
                environment |= SEVERAL_GPUS
        return environment

    def _watch(self, id: str, group: ProcessGroup) -> None:
        found = self._groups.get(id)
        if found is not None:
            # `list` found it while `start` launched it; only this group has the child.
            asyncio.get_running_loop().remove_reader(found.pidfd)
            found.close()
        self._groups[id] = group
        asyncio.get_running_loop().add_reader(group.pidfd, self._exited, id)

    def _exited(self, id: str) -> None:
        """Notify of an exit once, whether the event loop or `release` detects it first."""
        group = self._groups[id]
        asyncio.get_running_loop().remove_reader(group.pidfd)
        if id not in self._reported:
            self._reported.add(id)
            self.exits.notify(id, Exit(describe_exit(group.exit_code())))

    def _signal(self, id: str, number: signal.Signals) -> None:
        group = self._groups.get(id)
        try:
            if group is not None:
                group.signal(number)
        except PermissionError as error:
            raise DriverError(f"cannot end {id}: it has a process of another user") from error

    def _forget(self, id: str) -> None:
        group = self._groups.pop(id)
        self._reported.discard(id)
        self._models.discard(id)
        asyncio.get_running_loop().remove_reader(group.pidfd)
        group.close()


class GroupProcesses:
    """`Processes` of the process groups of replicas, and of servers that left theirs."""

    has_other_users = False

    def __init__(
        self, run_root: Path, groups: Mapping[str, ProcessGroup], models: Collection[str]
    ) -> None:
        """`groups` are those of running replicas by id, `models` the ids of replicas without a
        server; the driver changes both."""
        self._run_root, self._groups, self._models = run_root, groups, models

    async def pids(self, id: str) -> frozenset[int] | None:
        """Return the pids of the replica's process group, and those of a server outside of it."""
        group = self._groups.get(id)
        if group is None:
            return frozenset()
        try:
            found = await asyncio.to_thread(members, group.pid)
            if id not in self._models:
                there = await asyncio.to_thread(marked, self._run_root)
                found |= there.get(id, frozenset())
                found |= await asyncio.to_thread(below, group.pid)
        except OSError as error:
            raise DriverError(f"cannot list the processes of {id}: {error}") from error
        return found

    async def used_mib(self, id: str) -> float | None:  # noqa: ARG002 - the same for all
        """Return None: sidecars measure their servers."""
        return None


def _launch(
    command: list[str],
    environment: dict[str, str],
    record: ReplicaRecord,
    run_dir: Path,
    log: Path,
) -> ProcessGroup:
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=run_dir,
            env=environment,
            start_new_session=True,
        )
    try:
        group = ProcessGroup(child.pid, os.pidfd_open(child.pid), child)
    except OSError:
        # Without a pidfd its exit could not be detected.
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise
    with contextlib.suppress(ProcessLookupError):
        is_server = record.engine == ENGINE
        if not is_server:
            _cap(child.pid, record.memory_mib)
        # RLIMIT_NPROC would count all processes of this user.
        _, most = resource.prlimit(child.pid, resource.RLIMIT_NOFILE)
        wanted = SERVER_NOFILE_MAX if is_server else NOFILE_MAX
        resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (min(wanted, most), most))
    return group


def _cap(pid: int, memory_mib: int) -> None:
    """Limit a process's private memory permanently; 0 changes nothing."""
    if memory_mib:
        cap = memory_mib * 2**20
        resource.prlimit(pid, resource.RLIMIT_DATA, (cap, cap))


def describe_exit(code: int | None) -> str:
    if code is None:
        return "exited"
    if code >= 0:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
