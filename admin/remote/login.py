"""Logging in over SSH, by way of the jump hosts that ~/.ssh/config names."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import asyncssh

from admin.remote.failures import because, login_failure
from admin.remote.host_keys import Greeter, known_hosts, refused
from admin.remote.target import Login, Target, parse_target

CONNECT_S: Final = 10.0
LOGIN_S: Final = 15.0
HOP_S: Final = CONNECT_S + LOGIN_S + 5.0
"""Seconds for one machine with everything: names, proxy command, keys."""
ALIVE_S: Final = 10.0
"""Seconds of silence after which the server is asked whether it lives; three unanswered end it."""
ALIVE_MAX: Final = 3
HOPS_MAX: Final = 5
"""Machines on the way, the last one included."""


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """A connection and what was noted about it. Closing the connection closes those before it."""

    connection: asyncssh.SSHClientConnection
    greeter: Greeter
    before: LoggedIn | None = None

    async def close(self) -> None:
        """Close the connection and those it runs through."""
        self.connection.close()
        await self.connection.wait_closed()
        if self.before is not None:
            await self.before.close()

    def reason_lost(self) -> str:
        """Why the connection is over, "" while it is not."""
        return self.greeter.lost if self.connection.is_closed() else ""


async def log_in(login: Login, hops_left: int = HOPS_MAX) -> LoggedIn:
    """Log in, through jump hosts if ~/.ssh/config says so; each one's host key is checked.

    Raises Unreachable.
    """
    if not hops_left:
        raise because(f"~/.ssh/config: more than {HOPS_MAX} machines on the way")
    target = login.target
    try:
        # Without a network, but it may read key files and run what `Match exec` names.
        options = await asyncio.to_thread(asyncssh.SSHClientConnectionOptions, **_given(login))
        jumps = _jumps(options)
    except (OSError, ValueError, asyncssh.Error) as error:
        raise login_failure(target, error) from error
    before = None
    try:
        for jump in jumps:
            hop = await log_in(replace(login, target=jump), hops_left - 1)
            before = replace(hop, before=before)
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
    greeter = Greeter()
    # An explicit None for the tunnel keeps asyncssh from opening jump hosts itself, whose keys
    # it would then check by its own rules.
    final = {"known_hosts": known, "tunnel": before.connection if before else None}
    try:
        async with asyncio.timeout(HOP_S):
            connection = await asyncssh.connect(
                client_factory=lambda: greeter, **{**_given(login), **final}
            )
    except asyncssh.HostKeyNotVerifiable as error:
        raise refused(login, known, greeter) from error
    except (OSError, TimeoutError, ValueError, asyncssh.Error) as error:
        raise login_failure(login.target, error) from error
    return LoggedIn(connection, greeter, before)


def _given(login: Login) -> dict[str, Any]:
    """What overrules ~/.ssh/config."""
    target = login.target
    given: dict[str, Any] = {
        "host": target.host,
        "config": (),  # ~/.ssh/config
        "connect_timeout": CONNECT_S,
        "login_timeout": LOGIN_S,
        "keepalive_interval": ALIVE_S,
        "keepalive_count_max": ALIVE_MAX,
        # Only files of the operator may say which keys are trusted.
        "x509_trusted_certs": None,
        # Forwarding an agent or running a command has no place in a tunnel.
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


def _jumps(options: asyncssh.SSHClientConnectionOptions) -> list[Target]:
    """The jump hosts in order. Raises ValueError."""
    tunnel = options.tunnel
    if not isinstance(tunnel, str) or not tunnel or tunnel == "none":
        return []
    targets = [parse_target(each.strip().removeprefix("ssh://")) for each in tunnel.split(",")]
    if len(targets) >= HOPS_MAX:
        raise ValueError(f"ProxyJump: expected at most {HOPS_MAX - 1} hosts, got {len(targets)}")
    return targets
