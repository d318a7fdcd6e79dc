"""Private Docker engine of one test, which may kill, restart and configure it."""

from __future__ import annotations

import functools
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.support.engine import connected, engine_url, refuse

START_S = 60.0
STOP_S = 60.0
"""Max seconds for a clean stop: dockerd without live-restore gives its containers 15 s."""
END_S = 60.0
"""Max seconds until a killed process is gone and its cgroup is free."""
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
        self._dockerd: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> OwnEngine:
        _expect_tools()
        for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            if not Path("/proc", folder.name.split("-")[1]).exists():
                wipe(folder)
        self.root = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self.url = f"unix://{self.root}/docker.sock"
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
        assert self._dockerd is not None, "it does not run"
        return self._dockerd.pid

    def start(self) -> None:
        """Start dockerd in its former namespaces; return when it is ready."""
        assert self._holder is not None
        assert self._dockerd is None, "it runs already"
        notified = self.root / "notify"
        notified.unlink(missing_ok=True)
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready,
            (self.root / "log").open("ab") as log,
        ):
            ready.bind(str(notified))
            self._dockerd = subprocess.Popen(
                ["nsenter", f"--target={self._holder.pid}", "--net", "--mount", *self._command()],
                env={**os.environ, "PATH": self._path, "NOTIFY_SOCKET": str(notified)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            ended = os.pidfd_open(self._dockerd.pid)
            try:
                readable, _, _ = select.select([ready, ended], [], [], START_S)
            finally:
                os.close(ended)
        if ready not in readable:
            raise AssertionError(f"dockerd did not start:\n{self.log()}")

    def kill(self) -> None:
        """Kill dockerd and reap it; until then another one refuses to start."""
        assert self._dockerd is not None, "it does not run"
        self._dockerd.kill()
        self._dockerd.wait(END_S)
        self._dockerd = None
        # containerd dies shortly after dockerd. Until the machine's init has reaped it, which may
        # never happen, the next dockerd would take it for alive and wait for it.
        _await_ends(pid for pid, name in processes(self.root) if name == "containerd")
        (self.root / "exec/containerd/containerd.pid").unlink()

    def stop(self) -> None:
        """Stop dockerd as a machine shutdown does, and wait for its end."""
        assert self._dockerd is not None, "it does not run"
        self._dockerd.terminate()
        self._dockerd.wait(STOP_S)
        self._dockerd = None

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
        lines = (self.root / "log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-30:])

    def run(self, *command: str) -> str:
        """Run a command of this machine in the engine's network; return its output."""
        assert self._holder is not None
        enter = ["nsenter", f"--target={self._holder.pid}", "--net"]
        return subprocess.run([*enter, *command], check=True, capture_output=True, text=True).stdout

    def _command(self) -> list[str]:
        root = self.root
        return [
            "dockerd",
            f"--host={self.url}",
            f"--data-root={root}/data",
            f"--exec-root={root}/exec",
            f"--pidfile={root}/pid",
            f"--cgroup-parent=/{root.name}",
            "--exec-opt=native.cgroupdriver=cgroupfs",
            "--bridge=none",
            "--iptables=false",
            "--ip-forward=false",
            "--ip-masq=false",
            *self._arguments,
        ]

    def _hold(self) -> None:
        """Create the namespaces and keep them as long as this process lives."""
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--propagation=slave", "sh", "-c", HOLD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"held\n", "no namespaces could be made"
        if self._disk_mib:
            (self.root / "data").mkdir()
            size = f"size={self._disk_mib}m"
            self.enter("mount", "-t", "tmpfs", "-o", size, "none", f"{self.root}/data")

    def _end(self) -> None:
        for process in (self._dockerd, self._holder):
            if process is not None:
                process.kill()
                process.communicate()
        self._dockerd = self._holder = None
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


def processes(root: Path) -> list[tuple[int, str]]:
    """Return pid and name of the engine's processes below `root`: dockerd, containerd, shims."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name = (folder / "exe").readlink().name
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:  # the process has ended, or is a kernel thread
            continue
        is_engine = name in {"dockerd", "containerd"} or name.startswith("containerd-shim")
        if is_engine and any(f"{root}/".encode() in word for word in words):
            found.append((int(folder.name), name))
    return found


def lives(pid: int) -> bool:
    """Return whether a process runs. A zombie counts as ended."""
    try:
        ended = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        return not select.select([ended], [], [], 0)[0]
    finally:
        os.close(ended)


def wipe(root: Path) -> None:
    """Kill all processes of the engine below `root` and remove its files."""
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
        _await(functools.partial(_is_removed, group), f"{group} is still in use")
    _kill(pid for pid, _ in processes(root))
    shutil.rmtree(root)


def _expect_tools() -> None:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        refuse(f"an engine of a test's own needs root and {', '.join(missing or TOOLS)}")


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
    _await_ends(killed)


def _await_ends(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            ended = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([ended], [], [], END_S)[0], f"process {pid} still lives"
        finally:
            os.close(ended)


def _await(condition: Callable[[], bool], complaint: str) -> None:
    end = time.monotonic() + END_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, complaint
        pause.wait(0.01)
