"""SSH logins: targets, jump hosts of ~/.ssh/config, host key checks, errors with remedies.

Host keys are always checked against a list, even an empty one: asyncssh checks nothing if it is
given None, as for `UserKnownHostsFile none` in ~/.ssh/config.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import asyncssh

from hosts.errors import Unreachable, shown

PORT_MAX: Final = 65535
WORD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+%~-]*")
"""User name, host name or alias of ~/.ssh/config; never an option of `ssh`."""
ADDRESS: Final = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?")
"""Characters of an IPv6 address; the resolver validates it."""
USER_FILE: Final = Path("~/.ssh/known_hosts")
SYSTEM_FILES: Final = (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))
FILE_MAX: Final = 16 * 1024 * 1024
"""Max characters read of one known_hosts file."""
HOP_S: Final = 10.0
"""Max seconds per machine: name lookup, TCP connection or proxy command, keys."""
ALIVE_S: Final = 10.0
"""Seconds of silence before a keepalive; ALIVE_MAX unanswered ones end the connection."""
ALIVE_MAX: Final = 3
GRACE_S: Final = 2.0
"""Max seconds for an orderly close."""
HOPS_MAX: Final = 5
"""Max machines on the way, including the target."""
CIPHERS: Final = "^aes128-gcm@openssh.com"
"""Put first in the list of preferences: it takes half the CPU of asyncssh's first one."""
SHOWN_MAX: Final = 200
"""Max characters of wrong input in an error."""
KEY_OPTION: Final = "--identity FILE"
HOST_KEY_MAX: Final = 16 * 1024
"""Max characters of a pinned host key."""


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

    None means the agent's keys, ~/.ssh/config and the default files. If `host_key` ("TYPE BASE64",
    as of `parse_host_key`) is set, the target must have that key and no known_hosts file is read
    for it; jump hosts are checked as usual.
    """

    target: Target
    identity: Path | None = None
    known_hosts: Path | None = None
    host_key: str = ""


def login_to(address: str, identity: str = "", host_key: str = "") -> Login:
    """Return the login to `[USER@]HOST[:PORT]` with the file of a private key and a pinned key, ""
    for none. Raises ValueError."""
    return Login(parse_target(address), Path(identity) if identity else None, host_key=host_key)


def parse_target(text: str) -> Target:
    """Parse `[USER@]HOST[:PORT]`; an IPv6 address with a port is in brackets. Raises ValueError."""
    given = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
    user, at, rest = text.rpartition("@")
    host, port = _split(rest)
    is_host = WORD.fullmatch(host) or (":" in host and ADDRESS.fullmatch(host))
    if not is_host or (at and not WORD.fullmatch(user)):
        raise ValueError(f"expected [USER@]HOST[:PORT], got {given!r}")
    if port is None:
        return Target(host, user or None)
    if not port.isdecimal() or not 1 <= int(port[:6]) <= PORT_MAX:
        raise ValueError(f"expected a port from 1 to {PORT_MAX}, got {port[:20]!r} in {given!r}")
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


def parse_host_key(text: str) -> str:
    """Return a public key as "TYPE BASE64", without a comment. Raises ValueError."""
    given = text if len(text) <= SHOWN_MAX else f"{len(text)} characters"
    try:
        if len(text) > HOST_KEY_MAX or "\n" in text.strip():
            raise ValueError("too long, or several lines")
        key = asyncssh.import_public_key(text.strip())
    except (ValueError, asyncssh.KeyImportError) as error:
        raise ValueError(
            f"expected a public host key such as 'ssh-ed25519 AAAA...', got {given!r}: {error}"
        ) from error
    kind, data = key.export_public_key("openssh").decode("ascii").split()[:2]
    return f"{kind} {data}"


def unreachable_error(text: str, hint: str = "") -> Unreachable:
    """Return an Unreachable with `text`, and with `hint` as its note."""
    error = Unreachable(text)
    if hint:
        error.add_note(hint)
    return error


def login_failure(target: Target, error: Exception, identity: Path | None = None) -> Unreachable:
    """Return the error for a failed login to `target`, with the private key `identity` if one was
    named."""
    by_hand = f"check whether this works: {target.command()}"
    if isinstance(error, asyncssh.PermissionDenied):
        return unreachable_error(
            f"{target} accepts none of your SSH keys: {shown(error)}",
            f"name one with {KEY_OPTION}, or: {target.command('ssh-copy-id')}",
        )
    if isinstance(error, TimeoutError | asyncssh.TimeoutError):
        return unreachable_error(f"{target} does not answer SSH in time", by_hand)
    if isinstance(error, asyncssh.KeyEncryptionError | asyncssh.KeyImportError):
        file = f" {identity}" if identity else ""
        return unreachable_error(
            f"the private key{file} cannot be used: {error}", "ssh-add FILE, then again"
        )
    if isinstance(error, asyncssh.ConfigParseError):
        return unreachable_error(f"~/.ssh/config: {error}", "correct that line of ~/.ssh/config")
    if isinstance(error, asyncssh.DisconnectError):
        return unreachable_error(
            f"the SSH server of {target} ended the connection: {shown(error)}", by_hand
        )
    reason = getattr(error, "strerror", None) or error
    if culprit := getattr(error, "filename", None):  # a key, or the program of ProxyCommand
        reason = f"{culprit}: {reason}"
    return unreachable_error(f"{target} cannot be reached by SSH: {shown(reason)}", by_hand)


def connection_broken(target: Target, reason: str) -> Unreachable:
    """Return the error for a connection that broke in use."""
    return unreachable_error(
        f"the SSH connection to {target} broke: {reason or 'no reason given'}",
        "started operations may continue there: run fnctl ls and fnctl show before you try again",
    )


class KnownHosts(asyncssh.SSHKnownHosts):
    """Known host keys of `files` and of `lines`, in the format of such a file.

    `name` is the host looked up last; `has_key`: it has any key.
    """

    def __init__(self, files: Sequence[Path], lines: str = "") -> None:
        super().__init__(lines)
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
    """Client that refuses unknown host keys; records them and the reason of a lost connection.

    `lost` is set when the connection has ended.
    """

    def __init__(self) -> None:
        self.shown_key: asyncssh.SSHKey | None = None
        self.lost_reason: str = ""
        self.lost = asyncio.Event()

    def validate_host_public_key(
        self, _host: str, _addr: str, _port: int, key: asyncssh.SSHKey
    ) -> bool:
        """Refuse a key that is not among the known ones (asyncssh callback)."""
        self.shown_key = key
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Record the end of the connection (asyncssh callback)."""
        self.lost_reason = shown(exc) if exc is not None else "the server closed it"
        self.lost.set()


def known_hosts(login: Login, configured: Sequence[str]) -> KnownHosts:
    """Return the pinned key, else read the keys of --known-hosts, else of the `configured` files of
    ~/.ssh/config, else of the default files. Raises Unreachable for what cannot be read."""
    if login.host_key:
        try:
            return KnownHosts([], f"* {parse_host_key(login.host_key)}\n")
        except ValueError as error:
            raise unreachable_error(f"the pinned key of {login.target}: {error}") from error
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
    sent = "a key"
    if host_keys.shown_key is not None:
        key = host_keys.shown_key
        sent = f"{key.get_algorithm()} {key.get_fingerprint()}"
    if login.host_key:
        pinned = asyncssh.import_public_key(login.host_key).get_fingerprint()
        return unreachable_error(
            f"the host key of {target} is not the pinned one: it sent {sent}, pinned is {pinned}."
            " The connection may be intercepted",
            "ask its operator; if the machine is new, pin its new key with --host-key",
        )
    files = ", ".join(map(str, known.files)) or str(USER_FILE)
    if known.has_key:
        return unreachable_error(
            f"the host key of {target} has CHANGED: it sent {sent}, {files} has another one."
            " The connection may be intercepted",
            f"ask its operator; if the machine is new: ssh-keygen -R '{known.name}' -f {files}",
        )
    error = unreachable_error(
        f"the host key of {target} is not known: it sent {sent}, {files} has none for it",
        f"compare the key during one login by hand: {_login_once(login)}",
    )
    if host_keys.shown_key is not None:
        error.host_key = parse_host_key(host_keys.shown_key.export_public_key().decode("ascii"))
    return error


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

    async def close(self, grace_s: float = GRACE_S) -> None:
        """Close the connection and those it runs through; abort them after `grace_s`."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._close()
        finally:
            self.abort()

    async def _close(self) -> None:
        self.connection.close()
        await self.connection.wait_closed()
        if self.before is not None:
            await self.before._close()

    def abort(self) -> None:
        """Close the connection and those it runs through without sending anything."""
        self.connection.abort()
        if self.before is not None:
            self.before.abort()

    def reason_lost(self) -> str:
        """Return the reason of a lost connection, "" while it is open."""
        return self.host_keys.lost_reason if self.connection.is_closed() else ""


async def log_in(
    login: Login, hops_left: int = HOPS_MAX, *, alive_s: float | None = None
) -> LoggedIn:
    """Log in through the jump hosts of ~/.ssh/config; every host key is checked.

    A keepalive is sent after `alive_s` seconds of silence (None: ALIVE_S). Raises Unreachable.
    """
    if not hops_left:
        raise unreachable_error(f"~/.ssh/config: more than {HOPS_MAX} machines on the way")
    options, jumps = await asyncio.to_thread(_configured, login)
    alive_s = ALIVE_S if alive_s is None else alive_s
    before = None
    try:
        for jump in jumps:
            hop = replace(login, target=jump, host_key="")
            if before is None:
                before = await log_in(hop, hops_left - 1, alive_s=alive_s)
            else:  # through the jump host before it, not through those of ~/.ssh/config
                options_there, _ = await asyncio.to_thread(_configured, hop)
                before = await _connect(hop, options_there, before, alive_s)
        return await _connect(login, options, before, alive_s)
    except BaseException:
        if before is not None:
            await before.close()
        raise


async def _connect(
    login: Login,
    options: asyncssh.SSHClientConnectionOptions,
    before: LoggedIn | None,
    alive_s: float,
) -> LoggedIn:
    files = options.config.get("UserKnownHostsFile", ())
    known = known_hosts(login, list(map(str, cast(Sequence[str], files))))
    host_keys = HostKeyClient()
    # An explicit None for the tunnel keeps asyncssh from opening jump hosts itself: it would check
    # their keys by its own rules.
    final: dict[str, Any] = {
        "known_hosts": known,
        "tunnel": before.connection if before else None,
        "keepalive_interval": alive_s,
    }
    if not options.config.get("Ciphers"):
        final["encryption_algs"] = CIPHERS
    try:
        async with asyncio.timeout(HOP_S):
            connection = await asyncssh.connect(
                client_factory=lambda: host_keys, **{**_given(login), **final}
            )
    except asyncssh.HostKeyNotVerifiable as error:
        refusal = host_key_refused(login, known, host_keys)
        refusal.is_refusal = True
        raise refusal from error
    except (OSError, TimeoutError, ValueError, asyncssh.Error) as error:
        failure = login_failure(login.target, error, login.identity)
        failure.is_refusal = isinstance(error, asyncssh.PermissionDenied)
        raise failure from error
    return LoggedIn(connection, host_keys, before)


def _configured(login: Login) -> tuple[asyncssh.SSHClientConnectionOptions, list[Target]]:
    """Return a machine's options and jump hosts from ~/.ssh/config. Raises Unreachable.

    Blocking: it may read key files and run the command of `Match exec`.
    """
    try:
        options = asyncssh.SSHClientConnectionOptions(**_given(login))
        return options, _jumps(options, login.target)
    except (OSError, ValueError, asyncssh.Error) as error:
        raise login_failure(login.target, error, login.identity) from error


def _given(login: Login) -> dict[str, Any]:
    """Return the options that override ~/.ssh/config."""
    target = login.target
    given: dict[str, Any] = {
        "host": target.host,
        "config": (),  # ~/.ssh/config
        # HOP_S limits the whole. asyncssh's own limit is an asyncio.wait_for, which loses a
        # cancellation that comes as the login ends (Python 3.11).
        "connect_timeout": None,
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
