"""Logins to hosts before they are stored: host keys, and checks of requirements.

asyncssh takes a fifth of a second to import, a fifth of a server's start. Servers without other
hosts do not need it: so the code of logins is imported with the first login, in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hosts.checks import Check
from hosts.errors import Unreachable
from registry.errors import BadRequest, HostRefused
from registry.model.hosts import SshHost

if TYPE_CHECKING:
    from hosts.login import Login

Examine = Callable[["Login", str], Awaitable[list[Check]]]
LogIn = Callable[["Login"], Awaitable[Any]]


async def load_logins() -> None:
    """Import the code of logins in a thread: a handler that awaits this first does not block the
    event loop later."""
    await asyncio.to_thread(import_module, "hosts.probes")


async def _log_in(login: Login) -> Any:
    from hosts.login import log_in

    return await log_in(login)


async def _examine(login: Login, engine: str) -> list[Check]:
    from hosts.probes import examine

    return await examine(login, engine)


@dataclass(frozen=True, slots=True)
class Checked:
    """A host that a login has reached, with the results of all checks there."""

    host: SshHost
    checks: list[Check]


class HostLogins:
    """Logs in to hosts as the user of the server: with its agent, ~/.ssh/config and known_hosts."""

    def __init__(self, log_in: LogIn = _log_in, examine: Examine = _examine) -> None:
        self._log_in = log_in
        self._examine = examine

    async def check(self, host: SshHost, *, accepts_key: bool = False) -> Checked:
        """Log in and examine the host; with `accepts_key`, pin the key of a host without a known
        one. Raises HostRefused, naming the first problem and its remedy, or BadRequest."""
        try:
            host = await self._with_key(host, accepts_key=accepts_key)
            checks = await self._examine(login_of(host), host.engine)
        except Unreachable as error:
            raise _refused(error) from error
        found = Checked(host, checks)
        for check in checks:
            if check.level == "fail":
                raise HostRefused(
                    f"{host.address} cannot run replicas: {check.name}: {check.found}",
                    detail={"hint": check.todo, "checks": checks},
                )
        return found

    async def examine(self, host: SshHost) -> list[Check]:
        """Return the results of all checks of a host; of its login alone if that fails."""
        try:
            await self._try(host)
            return await self._examine(login_of(host), host.engine)
        except Unreachable as error:
            return [Check("fail", "login", str(error), _hint(error))]

    async def _with_key(self, host: SshHost, *, accepts_key: bool) -> SshHost:
        try:
            await self._try(host)
        except Unreachable as error:
            shown = _shown_key(error)
            if not (accepts_key and shown and not host.host_key):
                raise
            host = replace(host, host_key=shown)
            await self._try(host)
        return host

    async def _try(self, host: SshHost) -> None:
        there = await self._log_in(login_of(host))
        await there.close()


def login_of(host: SshHost) -> Login:
    """Return the login of a host. Raises BadRequest for an address or a key that is none."""
    from hosts.login import login_to, parse_host_key

    try:
        key = parse_host_key(host.host_key) if host.host_key else ""
        return login_to(host.address, host.identity, key)
    except ValueError as error:
        raise BadRequest(str(error)) from error


def _refused(error: Unreachable) -> HostRefused:
    hint = _hint(error)
    if shown := _shown_key(error):
        return HostRefused(str(error), detail={"hint": hint, "host_key": shown})
    return HostRefused(str(error), detail={"hint": hint})


def _hint(error: Unreachable) -> str:
    """Return the remedy for a failed login; the option of hosts replaces that of --ssh."""
    from hosts.login import KEY_OPTION

    hint = "; ".join(getattr(error, "__notes__", ()))
    return hint.replace(KEY_OPTION, "--identity-file FILE")


def _shown_key(error: Unreachable) -> str:
    """Return the key that an unknown host has shown, "" for any other failure."""
    return str(getattr(error, "host_key", ""))
