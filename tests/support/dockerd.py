"""Process dockerd of an engine that tests kill, stop and start again."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

START_S = 60.0
STOP_S = 60.0
"""Max seconds for a clean stop: dockerd without live-restore gives its containers 15 s."""
END_S = 60.0
"""Max seconds until a killed process is gone and its cgroup is free."""


class Dockerd:
    """dockerd with its files in `root`, or none while it is stopped.

    `enter`: command prefix that runs it in its namespaces; `arguments`: further options; `path`:
    value of PATH. `url`: where it listens.
    """

    def __init__(
        self, root: Path, enter: Sequence[str], arguments: Sequence[str], path: str
    ) -> None:
        self.root = root
        self.url = f"unix://{root}/docker.sock"
        self._command = [*enter, *self._options(), *arguments]
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Return dockerd's process id. (Its short-lived children have the same name.)"""
        assert self._process is not None, "it does not run"
        pid = self._process.pid
        if _program(pid) == "dockerd":
            return pid
        # nsenter forks to enter a pid namespace, and waits for the child.
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    def start(self) -> None:
        """Start dockerd; return when it is ready."""
        assert self._process is None, "it runs already"
        notified = self.root / "notify"
        notified.unlink(missing_ok=True)
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready,
            (self.root / "log").open("ab") as log,
        ):
            ready.bind(str(notified))
            self._process = subprocess.Popen(
                self._command,
                env={**os.environ, "PATH": self._path, "NOTIFY_SOCKET": str(notified)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            ended = os.pidfd_open(self._process.pid)
            try:
                readable, _, _ = select.select([ready, ended], [], [], START_S)
            finally:
                os.close(ended)
        if ready not in readable:
            raise AssertionError(f"dockerd did not start:\n{self.log()}")

    def kill(self) -> None:
        """Kill dockerd and reap it; until then another one refuses to start."""
        assert self._process is not None, "it does not run"
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait(END_S)
        self._process = None
        # containerd dies shortly after dockerd. Until the machine's init has reaped it, which may
        # never happen, the next dockerd would take it for alive and wait for it.
        await_ends(pid for pid, name in processes(self.root) if name == "containerd")
        (self.root / "exec/containerd/containerd.pid").unlink()

    def stop(self) -> None:
        """Stop dockerd as a machine shutdown does, and wait for its end."""
        assert self._process is not None, "it does not run"
        os.kill(self.pid, signal.SIGTERM)
        self._process.wait(STOP_S)
        self._process = None

    def forget(self) -> None:
        """Reap dockerd, which has been killed together with its namespaces."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(END_S)
            self._process = None

    def log(self) -> str:
        """Return the last lines of dockerd's log."""
        lines = (self.root / "log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-30:])

    def _options(self) -> list[str]:
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
        ]


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


def await_ends(pids: Iterable[int]) -> None:
    """Wait until killed processes have ended."""
    for pid in pids:
        try:
            ended = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([ended], [], [], END_S)[0], f"process {pid} still lives"
        finally:
            os.close(ended)


def _program(pid: int) -> str:
    return Path(f"/proc/{pid}/exe").readlink().name
