"""The container runtime of a node: it outlives its kubelet, as containerd does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from tests.support.kubernetes.memory import MemoryGroup
from tests.support.kubernetes.network import Network, PodNetwork

PROGRAM: Final = Path(__file__).with_name("container.py")
CHECKOUT: Final = Path(__file__).resolve().parents[3]
SYSTEM: Final = ("/bin", "/etc", "/lib", "/lib64", "/sbin", "/usr")
"""Folders and links of this machine that every image has."""
END_S: Final = 10.0


@dataclass(frozen=True)
class Image:
    """What a container of an image finds. Every image has the programs of this machine, its Python
    and this checkout."""

    command: tuple[str, ...] = ()
    """Entrypoint, for containers that name no command."""
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = "20001"
    """As in an image's configuration: a number, a name, or "" for root."""
    folders: tuple[tuple[str, str], ...] = ()
    """Folders of this machine and where the image has them."""
    pull_s: float = 0.0
    """Seconds until it is there."""
    pull_error: str = ""
    """Why it cannot be pulled, in the kubelet's words."""
    id: str = field(default_factory=lambda: f"sha256:{token_hex(32)}")


@dataclass(frozen=True)
class Plan:
    """What container.py is told."""

    root: str
    network: int
    """Pid of a process of the Pod's network namespace."""
    hostname: str
    links: dict[str, str]
    """Symbolic links of the root by path."""
    mounts: list[tuple[str, str, bool]]
    """Source, target, and whether it is read-only, in order."""
    groups: list[str]
    """cgroups."""
    command: list[str]
    environment: dict[str, str]
    folder: str
    """Working folder, "" for /."""
    user: int
    group: int
    extra_groups: list[int]
    is_read_only: bool
    """Whether the root is."""
    is_shared: bool
    """Whether the Pod shares its processes: the command is not process 1 then."""
    log: str


class Container:
    """One run of a container."""

    def __init__(self, name: str, plan: Plan, memory: MemoryGroup, image: Image) -> None:
        self.name, self.image, self.memory = name, image, memory
        self.id = token_hex(32)
        self.log = Path(plan.log)
        self.why_not_started = ""
        self.exit_code: int | None = None
        self.is_oom = False
        self.started_at = self.finished_at = ""
        self.ended = asyncio.Event()
        self.pid = 0
        self._plan = plan
        self._process: subprocess.Popen[bytes] | None = None
        self._starting: asyncio.Future[None] | None = None

    async def start(self, now: Callable[[], str], told: Callable[[], None]) -> None:
        """Start it; `told` is called when it has ended. Goes on if the caller is cancelled."""
        self._starting = asyncio.ensure_future(self._start(now, told))
        await asyncio.shield(self._starting)

    async def _start(self, now: Callable[[], str], told: Callable[[], None]) -> None:
        command = [sys.executable, "-I", "-S", str(PROGRAM), json.dumps(asdict(self._plan))]
        # In this thread: the process ends with the thread that has started it.
        self._process = process = _spawn(command)
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        said: dict[str, Any] = (
            json.loads(line) if line else {"error": "the container's process has ended"}
        )
        if not line and process.stderr is not None:
            said["error"] = process.stderr.read().decode(errors="replace")
        self.pid = said.get("pid", 0)
        self.why_not_started = said.get("error", "")
        self.started_at = now()
        ending = os.pidfd_open(process.pid)
        loop = asyncio.get_running_loop()

        def end() -> None:
            loop.remove_reader(ending)
            os.close(ending)
            self.exit_code = process.wait()
            if self.exit_code < 0:
                self.exit_code = 128 - self.exit_code
            for stream in (process.stdout, process.stderr):
                assert stream is not None
                stream.close()
            self.is_oom = self.memory.has_killed()
            self.finished_at = now()
            self.memory.close()
            self.ended.set()
            told()

        loop.add_reader(ending, end)

    @property
    def is_running(self) -> bool:
        """Whether its first process is there."""
        return self.pid > 0 and not self.ended.is_set()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its first process."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def stop(self, grace_s: float) -> None:
        """Send TERM, and KILL after the grace period; return when it has ended."""
        if self._starting is not None:
            await self._starting
        if self.ended.is_set() or self._process is None:
            return
        if grace_s > 0:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), grace_s)
        self.signal(signal.SIGKILL)
        await asyncio.wait_for(self.ended.wait(), END_S)


class Sandbox:
    """What a Pod has on its node: network, volumes, containers."""

    def __init__(self, uid: str, folder: Path, network: PodNetwork) -> None:
        self.uid, self.folder, self.network = uid, folder, network
        self.containers: dict[str, Container] = {}
        """The latest run of each container."""
        self.restarts: dict[str, int] = {}
        self.devices: dict[str, list[str]] = {}
        """Devices of a plugin by resource."""

    async def close(self) -> None:
        """Kill what runs, and end the network."""
        for container in self.containers.values():
            await container.stop(0)
        await asyncio.to_thread(self.network.close)


class Runtime:
    """The sandboxes of one node, by the Pod's uid."""

    def __init__(self, folder: Path, network: Network) -> None:
        self.folder, self._network = folder, network
        folder.mkdir(mode=0o755, parents=True)
        self.sandboxes: dict[str, Sandbox] = {}
        self._removing: set[asyncio.Future[None]] = set()
        self._is_cut = False

    async def sandbox(self, uid: str, sysctls: Mapping[str, str]) -> Sandbox:
        """Make the sandbox of a Pod, whose network has these settings of the kernel."""
        folder = self.folder / uid
        folder.mkdir(exist_ok=True)
        making = asyncio.ensure_future(asyncio.to_thread(self._network.pod, sysctls))
        try:
            network = await asyncio.shield(making)
        except asyncio.CancelledError:
            (await making).close()
            raise
        made = self.sandboxes[uid] = Sandbox(uid, folder, network)
        if self._is_cut:
            network.cut(is_cut=True)
        return made

    def cut(self, *, is_cut: bool) -> None:
        """Cut the network of all Pods off, or heal it."""
        self._is_cut = is_cut
        for sandbox in list(self.sandboxes.values()):
            sandbox.network.cut(is_cut=is_cut)

    async def remove(self, uid: str) -> None:
        """End a sandbox, if it is there. Goes on if the caller is cancelled."""
        removing = asyncio.ensure_future(self._remove(uid))
        self._removing.add(removing)
        removing.add_done_callback(self._removing.discard)
        await asyncio.shield(removing)

    async def _remove(self, uid: str) -> None:
        if sandbox := self.sandboxes.pop(uid, None):
            await sandbox.close()
        shutil.rmtree(self.folder / uid, ignore_errors=True)

    async def close(self) -> None:
        """End every sandbox."""
        for uid in list(self.sandboxes):
            await self.remove(uid)
        await asyncio.gather(*self._removing)


def _spawn(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def system_mounts() -> tuple[list[tuple[str, str, bool]], dict[str, str]]:
    """Return what every image has of this machine: mounts and links."""
    mounts, links = [], {}
    for one in SYSTEM:
        if Path(one).is_symlink():
            links[one] = str(Path(one).readlink())
        elif Path(one).exists():
            mounts.append((one, one, True))
    return mounts, links


def own_mounts() -> list[tuple[str, str, bool]]:
    """Return the Python of this process and this checkout."""
    folders = dict.fromkeys((sys.base_prefix, sys.prefix, str(CHECKOUT)))
    return [(one, one, True) for one in folders if not one.startswith("/usr")]
