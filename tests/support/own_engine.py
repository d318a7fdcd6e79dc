"""Private Docker engine of one test, which may kill, restart and configure it."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.support.dockerd import END_S, Dockerd, await_ends, lives, processes
from tests.support.engine import connected, engine_url, refuse

__all__ = ["END_S", "OwnEngine", "lives", "nvidia_stand_ins", "processes"]

PREFIX = "fne-"
"""Prefix of the folder name, followed by the owner's pid. Short, because socket paths are
limited."""
TREE = "/sys/fs/cgroup"
TOOLS = ("dockerd", "runc", "unshare", "nsenter")

# Paths that another engine would share (containerd's sockets, settings, and the key that is the
# engine's identity) are hidden by mounts. All mounts and the network vanish with the last process
# in the namespaces.
HOLD = """
mkdir -p /run/containerd /etc/docker
mount -t tmpfs none /run/containerd && mount -t tmpfs none /etc/docker && echo held && exec cat
"""
HOOK = """#!/bin/sh
# Takes the container's state as NVIDIA's hook does, and gives the container no device.
exec cat >/dev/null
"""


class OwnEngine:
    """A private dockerd. After the block no process, mount, network or file of it is left.

    `arguments`: further options of dockerd; `path`: a folder placed before PATH; `disk_mib`: size
    of a disk in memory for its files, 0 for the machine's. `url` stays the same across `kill`,
    `stop` and `start`. Needs root and dockerd; otherwise the test is skipped, or fails in CI.
    """

    def __init__(
        self,
        *arguments: str,
        live_restore: bool = True,
        path: Path | None = None,
        disk_mib: int = 0,
    ) -> None:
        self._disk_mib = disk_mib
        self._arguments = [*arguments, f"--live-restore={str(live_restore).lower()}"]
        self._path = os.pathsep.join(filter(None, [str(path or ""), os.environ["PATH"]]))
        self._holder: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> OwnEngine:
        expect_tools(*TOOLS)
        self.root = make_root(PREFIX)
        try:
            self._hold()
            self.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    @property
    def pid(self) -> int:
        """Return dockerd's process id. (Its short-lived children have the same name.)"""
        return self.dockerd.pid

    def start(self) -> None:
        """Start dockerd in its former namespaces; return when it is ready."""
        self.dockerd.start()

    def kill(self) -> None:
        """Kill dockerd and reap it; until then another one refuses to start."""
        self.dockerd.kill()

    def stop(self) -> None:
        """Stop dockerd as a machine shutdown does, and wait for its end."""
        self.dockerd.stop()

    def enter(self, *command: str) -> str:
        """Run a command among its mounts; return the output."""
        assert self._holder is not None
        mine = ["nsenter", f"--target={self._holder.pid}", "--mount", *command]
        return subprocess.run(mine, check=True, stdout=subprocess.PIPE, text=True).stdout

    def free_mib(self) -> int:
        """Return the free space of its disk."""
        return int(self.enter("stat", "-f", "-c", "%a", f"{self.root}/data")) * 4 // 1024

    def load(self, image: str) -> None:
        """Copy an image by tag from the shared engine."""
        with connected(engine_url()) as shared, connected(self.url) as own:
            own.images.load(shared.api.get_image(image))

    def log(self) -> str:
        """Return the last lines of dockerd's log."""
        return self.dockerd.log()

    def run(self, *command: str) -> str:
        """Run a command of this machine in the engine's network; return its output."""
        assert self._holder is not None
        enter = ["nsenter", f"--target={self._holder.pid}", "--net"]
        return subprocess.run([*enter, *command], check=True, capture_output=True, text=True).stdout

    def _hold(self) -> None:
        """Create the namespaces and keep them as long as this process lives."""
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--propagation=slave", "sh", "-c", HOLD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        enter = ["nsenter", f"--target={self._holder.pid}", "--net", "--mount"]
        self.dockerd = Dockerd(self.root, enter, self._arguments, self._path)
        self.url = self.dockerd.url
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"held\n", "no namespaces could be made"
        if self._disk_mib:
            (self.root / "data").mkdir()
            size = f"size={self._disk_mib}m"
            self.enter("mount", "-t", "tmpfs", "-o", size, "none", f"{self.root}/data")

    def _end(self) -> None:
        if self._holder is not None:
            self.dockerd.forget()
            self._holder.kill()
            self._holder.communicate()
        self._holder = None
        wipe(self.root)


def nvidia_stand_ins(folder: Path) -> tuple[str, ...]:
    """Make an engine accept both ways to request a GPU on a machine without one.

    Writes the hook whose presence makes dockerd register the driver of DeviceRequests; `folder` has
    to be the engine's `path`. Returns the arguments that add the runtime `nvidia`.
    """
    hook = folder / "nvidia-container-runtime-hook"
    hook.write_text(HOOK)
    hook.chmod(0o755)
    return ("--add-runtime", f"nvidia={shutil.which('runc')}")


def wipe(root: Path) -> None:
    """Kill all processes of the engine below `root` and remove its files."""
    sweep(root)
    shutil.rmtree(root)


def sweep(root: Path) -> None:
    """Kill all processes of the engine below `root` and remove its cgroups."""
    engine = [pid for pid, name in processes(root) if not name.startswith("containerd-shim")]
    _kill(engine)  # first, because it would restart what dies
    groups = [
        Path(folder)
        for parent in (Path(TREE), *Path(TREE).iterdir())
        for folder, _, _ in os.walk(parent / root.name, topdown=False)
    ]
    for group in groups:
        _thaw(group)
    for group in groups:
        _kill(int(pid) for pid in (group / "cgroup.procs").read_text().split())
        await_condition(functools.partial(_is_removed, group), f"{group} is still in use")
    _kill(pid for pid, _ in processes(root))


def make_root(prefix: str) -> Path:
    """Make a folder for an engine; wipe those of test processes that have ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        if not Path("/proc", folder.name.split("-")[1]).exists():
            wipe(folder)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-"))


def expect_tools(*tools: str) -> None:
    """Skip the test without root or one of the programs; in CI, fail."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        refuse(f"an engine of a test's own needs root and {', '.join(missing or tools)}")


def _thaw(group: Path) -> None:
    """Thaw a cgroup: frozen processes do not die. The first file name is of cgroup v1, the second
    of v2."""
    for name, value in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
        if (group / name).exists():
            (group / name).write_text(value)


def _is_removed(group: Path) -> bool:
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


def _kill(pids: Iterable[int]) -> None:
    killed = list(pids)
    for pid in killed:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await_ends(killed)


def await_condition(condition: Callable[[], bool], complaint: str) -> None:
    """Wait until the condition holds, for at most END_S."""
    end = time.monotonic() + END_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, complaint
        pause.wait(0.01)
