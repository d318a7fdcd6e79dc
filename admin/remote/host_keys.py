"""Host keys: which are known, and what is said of one that is not.

There is always a list, be it an empty one: asyncssh stops checking where it is given None, and
reads `UserKnownHostsFile none` of ~/.ssh/config as that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import asyncssh

from admin.remote.failures import because
from admin.remote.target import Login
from admin.transport import Unreachable

USER_FILE: Final = Path("~/.ssh/known_hosts")
SYSTEM_FILES: Final = (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))
FILE_MAX: Final = 16 * 1024 * 1024
"""Characters read of one file of known hosts."""


class KnownHosts(asyncssh.SSHKnownHosts):
    """Known host keys of `files`. `name` is what was looked up, `has_key` whether it has any."""

    def __init__(self, files: Sequence[Path]) -> None:
        super().__init__()
        self.files = files
        self.name = ""
        self.has_key = False
        for path in files:
            self.load(_read(path))

    def match(self, host: str, addr: str, port: int | None) -> Any:
        """asyncssh's: the keys known of a host."""
        found = super().match(host, addr, port)
        self.name = host if port is None else f"[{host}]:{port}"
        self.has_key = any(found)
        return found


class Greeter(asyncssh.SSHClient):
    """Notes which key a server showed that is not known, and why the connection was lost."""

    def __init__(self) -> None:
        self.shown: asyncssh.SSHKey | None = None
        self.lost: str = ""

    def validate_host_public_key(
        self, _host: str, _addr: str, _port: int, key: asyncssh.SSHKey
    ) -> bool:
        """asyncssh's: whether a key is trusted that is not among the known ones. It never is."""
        self.shown = key
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncssh's: the connection is over."""
        self.lost = str(exc) if exc is not None else "the server closed it"


def known_hosts(login: Login, configured: Sequence[str]) -> KnownHosts:
    """The keys of --known-hosts; else of the files `configured` in ~/.ssh/config, else the usual.

    Raises Unreachable where a file that was named cannot be read or understood.
    """
    if login.known_hosts is not None:
        named = [login.known_hosts]
    else:
        named = [Path(name) for name in configured]
    usual = [USER_FILE, *SYSTEM_FILES]
    files = [path.expanduser() for path in named or usual]
    try:
        return KnownHosts([path for path in files if login.known_hosts or path.exists()])
    except (OSError, ValueError) as error:
        raise because(f"the known hosts cannot be read: {error}") from error


def refused(login: Login, known: KnownHosts, greeter: Greeter) -> Unreachable:
    """Why the key of a host was refused: another than the known one, or none is known."""
    target = login.target
    shown = "a key"
    if greeter.shown is not None:
        shown = f"{greeter.shown.get_algorithm()} {greeter.shown.get_fingerprint()}"
    files = ", ".join(map(str, known.files)) or str(USER_FILE)
    if known.has_key:
        return because(
            f"the host key of {target} has CHANGED: it shows {shown}, {files} knows another."
            " Somebody may be in between",
            f"ask who runs it; if the machine is new: ssh-keygen -R '{known.name}' -f {files}",
        )
    return because(
        f"the host key of {target} is not known: it shows {shown}, {files} has none for it",
        f"compare the key while you log in once: {_login_once(login)}",
    )


def _login_once(login: Login) -> str:
    command = login.target.command("ssh")
    if login.known_hosts is None:
        return command
    return command.replace("ssh", f"ssh -o UserKnownHostsFile={login.known_hosts}", 1)


def _read(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        text = file.read(FILE_MAX + 1)
    if len(text) > FILE_MAX:
        raise ValueError(f"{path}: expected at most {FILE_MAX} characters, got more")
    return text
