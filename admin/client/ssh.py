"""SSH logins: targets, jump hosts of ~/.ssh/config, host key checks, errors with remedies, and the
admin token over SFTP.

Host keys are always checked against a list, even an empty one: asyncssh checks nothing if it is
given None, as for `UserKnownHostsFile none` in ~/.ssh/config.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import asyncssh

from admin.client.transport import Unreachable

PORT_MAX: Final = 65535
WORD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+%~-]*")
"""User name, host name or alias of ~/.ssh/config; never an option of `ssh`."""
ADDRESS: Final = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?")
"""Characters of an IPv6 address; the resolver validates it."""
REFUSED_TEXT: Final = "Connection refused"
"""Text of OpenSSH's server for a closed port (strerror of ECONNREFUSED)."""
USER_FILE: Final = Path("~/.ssh/known_hosts")
SYSTEM_FILES: Final = (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))
FILE_MAX: Final = 16 * 1024 * 1024
"""Max characters read of one known_hosts file."""
CONNECT_S: Final = 10.0
LOGIN_S: Final = 15.0
HOP_S: Final = CONNECT_S + LOGIN_S + 5.0
"""Max seconds per machine: name lookup, proxy command, keys."""
ALIVE_S: Final = 10.0
"""Seconds of silence before a keepalive; ALIVE_MAX unanswered ones end the connection."""
ALIVE_MAX: Final = 3
HOPS_MAX: Final = 5
"""Max machines on the way, including the target."""
TOKEN_FILE: Final = "admin.token"  # noqa: S105 - a file's name
TOKEN_MAX: Final = 4096
"""Max bytes read of a token file."""
READ_S: Final = 15.0
"""Max seconds for opening SFTP and reading the file."""


@dataclass(frozen=True, slots=True)
class Target:
    """Machine to log in to. A field with None is taken from ~/.ssh/config and its defaults."""

    host: str
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{self.user}@" if self.user else ""
        return f"{user}{host}{'' if self.port is None else f':{self.port}'}"

    def command(self, program: str = "ssh") -> str:
        """Return the command for a login by hand."""
        port = "" if self.port is None else f" -p {self.port}"
        user = f"{self.user}@" if self.user else ""
        return f"{program}{port} {user}{self.host}"


@dataclass(frozen=True, slots=True)
class Login:
    """Login to `target`, with the file of a private key and a known_hosts file.

    None means the agent's keys, ~/.ssh/config and the default files.
    """

    target: Target
    identity: Path | None = None
    known_hosts: Path | None = None


def parse_target(text: str) -> Target:
    """Parse `[USER@]HOST[:PORT]`; an IPv6 address with a port is in brackets. Raises ValueError."""
    user, at, rest = text.rpartition("@")
    host, port = _split(rest)
    is_host = WORD.fullmatch(host) or (":" in host and ADDRESS.fullmatch(host))
    if not is_host or (at and not WORD.fullmatch(user)):
        raise ValueError(f"expected [USER@]HOST[:PORT], got {text!r}")
    if port is None:
        return Target(host, user or None)
    if not port.isdecimal() or not 1 <= int(port[:6]) <= PORT_MAX:
        raise ValueError(f"expected a port from 1 to {PORT_MAX}, got {port!r} in {text!r}")
    return Target(host, user or None, int(port))


def _split(rest: str) -> tuple[str, str | None]:
    """Return host and port. Several colons without brackets are an IPv6 address without a port."""
    if rest.startswith("["):
        host, end, tail = rest[1:].partition("]")
        if not end or tail[:1] not in ("", ":"):
            return "", None
        return host, tail[1:] if tail else None
    if rest.count(":") > 1:
        return rest, None
    host, colon, port = rest.partition(":")
    return host, port if colon else None


def unreachable_error(text: str, hint: str = "") -> Unreachable:
    """Return an Unreachable with `text`, and with `hint` as its note."""
    error = Unreachable(text)
    if hint:
        error.add_note(hint)
    return error


def login_failure(target: Target, error: Exception) -> Unreachable:
    """Return the error for a failed login to `target`."""
    by_hand = f"check whether this works: {target.command()}"
    if isinstance(error, asyncssh.PermissionDenied):
        return unreachable_error(
            f"{target} accepts none of your SSH keys: {error}",
            f"name one with --identity FILE, or: {target.command('ssh-copy-id')}",
        )
    if isinstance(error, TimeoutError | asyncssh.TimeoutError):
        return unreachable_error(f"{target} does not answer SSH in time", by_hand)
    if isinstance(error, asyncssh.KeyEncryptionError | asyncssh.KeyImportError):
        return unreachable_error(
            f"the private key cannot be used: {error}", "ssh-add FILE, then again"
        )
    if isinstance(error, asyncssh.ConfigParseError):
        return unreachable_error(f"~/.ssh/config: {error}", "correct that line of ~/.ssh/config")
    if isinstance(error, asyncssh.DisconnectError):
        return unreachable_error(
            f"the SSH server of {target} ended the connection: {error}", by_hand
        )
    reason = getattr(error, "strerror", None) or error
    return unreachable_error(f"{target} cannot be reached by SSH: {reason}", by_hand)


def channel_failure(target: Target, address: tuple[str, int], error: Exception) -> Unreachable:
    """Return the error for a channel to `address` (as seen from there) that `target` refused."""
    host, port = address
    shown = f"{host}:{port}"
    if isinstance(error, asyncssh.ChannelOpenError):
        if error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED:
            return unreachable_error(
                f"the SSH server of {target} forbids forwarding to {shown}",
                f"set in its sshd_config: AllowTcpForwarding local, PermitOpen {shown}",
            )
        if REFUSED_TEXT in error.reason:
            return unreachable_error(
                f"nothing listens on {shown} of {target}",
                f"start it there with fnctl serve, or set --url http://{host}:PORT",
            )
        return unreachable_error(f"{target} cannot reach {shown}: {error.reason}")
    if isinstance(error, TimeoutError | asyncssh.TimeoutError):
        return unreachable_error(f"{target} did not open a connection to {shown} in time")
    return connection_broken(target, str(error))


def connection_broken(target: Target, reason: str) -> Unreachable:
    """Return the error for a connection that broke in use."""
    return unreachable_error(
        f"the SSH connection to {target} broke: {reason or 'no reason given'}",
        "started operations may continue there: run fnctl ls and fnctl show before you try again",
    )


class KnownHosts(asyncssh.SSHKnownHosts):
    """Known host keys of `files`. `name` is the host looked up last; `has_key`: it has any key."""

    def __init__(self, files: Sequence[Path]) -> None:
        super().__init__()
        self.files = files
        self.name = ""
        self.has_key = False
        for path in files:
            self.load(_read(path))

    def match(self, host: str, addr: str, port: int | None) -> Any:
        """Return the known keys of a host (asyncssh callback)."""
        found = super().match(host, addr, port)
        self.name = host if port is None else f"[{host}]:{port}"
        self.has_key = any(found)
        return found


class HostKeyClient(asyncssh.SSHClient):
    """Client that refuses unknown host keys; records them and the reason of a lost connection."""

    def __init__(self) -> None:
        self.shown_key: asyncssh.SSHKey | None = None
        self.lost_reason: str = ""

    def validate_host_public_key(
        self, _host: str, _addr: str, _port: int, key: asyncssh.SSHKey
    ) -> bool:
        """Refuse a key that is not among the known ones (asyncssh callback)."""
        self.shown_key = key
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Record the end of the connection (asyncssh callback)."""
        self.lost_reason = str(exc) if exc is not None else "the server closed it"


def known_hosts(login: Login, configured: Sequence[str]) -> KnownHosts:
    """Read the keys of --known-hosts, else of the `configured` files of ~/.ssh/config, else of the
    default files. Raises Unreachable for an unreadable file."""
    if login.known_hosts is not None:
        named = [login.known_hosts]
    else:
        named = [Path(name) for name in configured]
    usual = [USER_FILE, *SYSTEM_FILES]
    files = [path.expanduser() for path in named or usual]
    try:
        return KnownHosts([path for path in files if login.known_hosts or path.exists()])
    except (OSError, ValueError) as error:
        raise unreachable_error(f"the known hosts files are not readable: {error}") from error


def host_key_refused(login: Login, known: KnownHosts, host_keys: HostKeyClient) -> Unreachable:
    """Return the error for a refused host key: it changed, or none is known."""
    target = login.target
    shown = "a key"
    if host_keys.shown_key is not None:
        key = host_keys.shown_key
        shown = f"{key.get_algorithm()} {key.get_fingerprint()}"
    files = ", ".join(map(str, known.files)) or str(USER_FILE)
    if known.has_key:
        return unreachable_error(
            f"the host key of {target} has CHANGED: it sent {shown}, {files} has another one."
            " The connection may be intercepted",
            f"ask its operator; if the machine is new: ssh-keygen -R '{known.name}' -f {files}",
        )
    return unreachable_error(
        f"the host key of {target} is not known: it sent {shown}, {files} has none for it",
        f"compare the key during one login by hand: {_login_once(login)}",
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


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """Connection, its host key client, and the jump host before it. `close` closes them all."""

    connection: asyncssh.SSHClientConnection
    host_keys: HostKeyClient
    before: LoggedIn | None = None

    async def close(self) -> None:
        """Close the connection and those it runs through."""
        self.connection.close()
        await self.connection.wait_closed()
        if self.before is not None:
            await self.before.close()

    def reason_lost(self) -> str:
        """Return the reason of a lost connection, "" while it is open."""
        return self.host_keys.lost_reason if self.connection.is_closed() else ""


async def log_in(login: Login, hops_left: int = HOPS_MAX) -> LoggedIn:
    """Log in through the jump hosts of ~/.ssh/config; every host key is checked.

    Raises Unreachable.
    """
    if not hops_left:
        raise unreachable_error(f"~/.ssh/config: more than {HOPS_MAX} machines on the way")
    options, jumps = await asyncio.to_thread(_configured, login)
    before = None
    try:
        for jump in jumps:
            hop = replace(login, target=jump)
            if before is None:
                before = await log_in(hop, hops_left - 1)
            else:  # through the jump host before it, not through those of ~/.ssh/config
                options_there, _ = await asyncio.to_thread(_configured, hop)
                before = await _connect(hop, options_there, before)
        return await _connect(login, options, before)
    except BaseException:
        if before is not None:
            await before.close()
        raise


async def _connect(
    login: Login, options: asyncssh.SSHClientConnectionOptions, before: LoggedIn | None
) -> LoggedIn:
    files = options.config.get("UserKnownHostsFile", ())
    known = known_hosts(login, list(map(str, cast(Sequence[str], files))))
    host_keys = HostKeyClient()
    # An explicit None for the tunnel keeps asyncssh from opening jump hosts itself: it would check
    # their keys by its own rules.
    final = {"known_hosts": known, "tunnel": before.connection if before else None}
    try:
        async with asyncio.timeout(HOP_S):
            connection = await asyncssh.connect(
                client_factory=lambda: host_keys, **{**_given(login), **final}
            )
    except asyncssh.HostKeyNotVerifiable as error:
        raise host_key_refused(login, known, host_keys) from error
    except (OSError, TimeoutError, ValueError, asyncssh.Error) as error:
        raise login_failure(login.target, error) from error
    return LoggedIn(connection, host_keys, before)


def _configured(login: Login) -> tuple[asyncssh.SSHClientConnectionOptions, list[Target]]:
    """Return a machine's options and jump hosts from ~/.ssh/config. Raises Unreachable.

    Blocking: it may read key files and run the command of `Match exec`.
    """
    try:
        options = asyncssh.SSHClientConnectionOptions(**_given(login))
        return options, _jumps(options, login.target)
    except (OSError, ValueError, asyncssh.Error) as error:
        raise login_failure(login.target, error) from error


def _given(login: Login) -> dict[str, Any]:
    """Return the options that override ~/.ssh/config."""
    target = login.target
    given: dict[str, Any] = {
        "host": target.host,
        "config": (),  # ~/.ssh/config
        "connect_timeout": CONNECT_S,
        "login_timeout": LOGIN_S,
        "keepalive_interval": ALIVE_S,
        "keepalive_count_max": ALIVE_MAX,
        # Only the operator's files may decide which keys are trusted.
        "x509_trusted_certs": None,
        # A tunnel needs neither agent forwarding nor a remote command.
        "agent_forwarding": False,
        "command": None,
    }
    if target.user is not None:
        given["username"] = target.user
    if target.port is not None:
        given["port"] = target.port
    if login.identity is not None:
        given["client_keys"] = [str(login.identity.expanduser())]
    return given


def _jumps(options: asyncssh.SSHClientConnectionOptions, target: Target) -> list[Target]:
    """Return the jump hosts in order; none if the target is its own jump host, as with `Host *`.
    Raises ValueError."""
    tunnel = options.tunnel
    if not isinstance(tunnel, str) or not tunnel or tunnel == "none":
        return []
    targets = [parse_target(each.strip().removeprefix("ssh://")) for each in tunnel.split(",")]
    if len(targets) >= HOPS_MAX:
        raise ValueError(f"ProxyJump: expected at most {HOPS_MAX - 1} hosts, got {len(targets)}")
    is_itself = [jump.host for jump in targets] == [target.host]
    return [] if is_itself and targets[0].port in (None, options.port) else targets


class NoToken(Exception):
    """The token could not be read; the text has the reason and the remedy."""


async def read_token(connection: asyncssh.SSHClientConnection, target: Target, data: Path) -> str:
    """Read the token in the remote folder `data`; `~` and relative paths start at the home folder.

    Raises NoToken.
    """
    path = remote_path(data)
    try:
        async with (
            asyncio.timeout(READ_S),
            connection.start_sftp_client() as sftp,
            sftp.open(path, "rb") as file,
        ):
            content = cast(bytes, await file.read(TOKEN_MAX + 1))
    except asyncssh.SFTPNoSuchFile as error:
        raise NoToken(f"{target} has no file {path}: set the folder with --data") from error
    except asyncssh.SFTPPermissionDenied as error:
        raise NoToken(
            f"{path} of {target} is not readable by this user: log in as the server's, or use --key"
        ) from error
    except (asyncssh.Error, OSError, TimeoutError) as error:
        raise NoToken(f"{target} sent no {path} by SFTP ({_reason(error)}): use --key") from error
    try:
        token = content.decode("ascii").strip()
    except ValueError as error:
        raise NoToken(f"{path} of {target} is not a token: expected ASCII text") from error
    if not token or len(content) > TOKEN_MAX:
        got = "an empty file" if not token else f"more than {TOKEN_MAX} bytes"
        raise NoToken(f"{path} of {target} is not a token: expected one line, got {got}")
    return token


def remote_path(data: Path) -> str:
    """Return the token's path for SFTP, relative to the home folder. Raises NoToken for `~user`."""
    parts = data.parts
    if parts[:1] == ("~",):
        return str(Path(*parts[1:]) / TOKEN_FILE)
    if parts and parts[0].startswith("~"):
        raise NoToken(f"--data: expected a path that begins with / or ~/, got {data}")
    return str(data / TOKEN_FILE)


def _reason(error: Exception) -> str:
    return str(error) or ("no answer in time" if isinstance(error, TimeoutError) else repr(error))
