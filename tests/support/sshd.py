"""A real OpenSSH server on the loopback interface, for one user with one key."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.freezing import freeze

PORT = 22
"""Port that known_hosts does not name."""
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
PRIVILEGE_DIR = Path("/run/sshd")
"""Empty folder for OpenSSH's privilege separation; needed only when run as root."""
END_S = 60.0
BASE = """\
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PidFile none
LogLevel DEBUG1
"""
SFTP = "Subsystem sftp internal-sftp"


class Sshd:
    """sshd with keys and settings in `folder`, until `stop`. `log`: path of its log file.

    `host`: address on which it listens; `port`: 0 for a free one of this machine. `enter`: command
    prefix that runs it in other namespaces.
    """

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        user: str = "",
        enter: Sequence[str] = (),
    ) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.host = host
        self.port = port
        self.user = user or getpass.getuser()
        self.enter = enter
        self.identity = self.make_key("user")
        self.known_hosts = folder / "known_hosts"
        self.log = folder / "log"
        self._host_key = self.make_key("host")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def target(self) -> str:
        """Return the argument for --ssh."""
        return f"{self.user}@{self.host}:{self.port}"

    @property
    def address(self) -> tuple[str, int]:
        """Return host and port it listens on."""
        return self.host, self.port

    @property
    def host_key(self) -> str:
        """Return the server's public key as a line of OpenSSH, without a comment."""
        return " ".join(self._host_key.with_suffix(".pub").read_text().split()[:2])

    def make_key(self, name: str) -> Path:
        """Create a private key, with the public key next to it."""
        path = self.folder / name
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        return path

    def know(self, key: Path | None = None) -> None:
        """Write the server's key to `known_hosts`: `key`, by default the real one."""
        kind, text, _ = (key or self._host_key).with_suffix(".pub").read_text().split()
        at = self.host if self.port == PORT else f"[{self.host}]:{self.port}"
        self.known_hosts.write_text(f"{at} {kind} {text}\n")

    def start(self, *settings: str) -> None:
        """Start listening. `settings` come before the usual ones, because sshd uses the first
        value."""
        assert SSHD is not None
        if os.geteuid() == 0:
            PRIVILEGE_DIR.mkdir(mode=0o755, exist_ok=True)
        self.port = self.port or _free_port()
        config = self.folder / "sshd_config"
        own = [
            f"ListenAddress {self.host}:{self.port}",
            f"HostKey {self._host_key}",
            f"AuthorizedKeysFile {self.identity}.pub",
        ]
        if not self.enter:
            # Start files of this user's shell may be slow and, when killed, leave locks.
            own.append(f"SetEnv HOME={self.folder}")
        config.write_text("\n".join([*settings, *own, BASE]))
        command = [*self.enter, SSHD, "-D", "-E", str(self.log), "-f", str(config)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self._wait_listening()
        self.know()

    def _wait_listening(self) -> None:
        assert self._process is not None
        end = time.monotonic() + END_S
        while time.monotonic() < end and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(self.address, END_S):
                return
        raise AssertionError(f"sshd did not start: {self.log.read_text()}")

    def freeze(self) -> None:
        """Stop sshd and all its connections with SIGSTOP, as when a network becomes silent."""
        assert self._process is not None
        for pid in [*_descendants(self._process.pid), self._process.pid]:
            freeze(pid)

    def kill_listener(self) -> None:
        """Kill the listening process; its connections go on."""
        assert self._process is not None
        os.kill(self.listener, signal.SIGKILL)
        self._process.wait(END_S)
        self._process = None

    @property
    def listener(self) -> int:
        """Return the pid of the listening process, 0 if there is none."""
        # nsenter forks to enter a pid namespace.
        family = [] if self._process is None else self.family()
        found = family[1:] if self.enter else family
        return found[0] if found else 0

    def family(self) -> list[int]:
        """Return the pids of sshd and of its connections, the first one first."""
        assert self._process is not None
        return [self._process.pid, *_descendants(self._process.pid)]

    def stop(self) -> None:
        """Kill sshd and all its connections, as when the machine loses power."""
        process, self._process = self._process, None
        if process is None:
            return
        pids = [process.pid, *_descendants(process.pid)]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait(END_S)


def _descendants(pid: int) -> list[int]:
    """Return all descendants of `pid`; sshd starts a session for each login."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    children = [int(each) for each in text.split()]
    return [*children, *(below for child in children for below in _descendants(child))]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def needs_sshd() -> None:
    """Skip the test if there is no OpenSSH server; in CI, fail."""
    if SSHD is None or shutil.which("ssh-keygen") is None:
        if os.environ.get("FN_CI"):
            pytest.fail("FN_CI=1, but there is no sshd: apt-get install openssh-server")
        pytest.skip("no sshd: apt-get install openssh-server")


@contextmanager
def sshd(folder: Path, *settings: str, sftp: bool = True) -> Iterator[Sshd]:
    """Run a server; it and its connections are gone after the block."""
    needs_sshd()
    server = Sshd(folder)
    server.start(*settings, *([SFTP] if sftp else []))
    try:
        yield server
    finally:
        server.stop()
