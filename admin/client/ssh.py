"""The client's SSH: errors of channels to a server, and the admin token over SFTP."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Final, cast

import asyncssh

from admin.client.listeners import ROOT, TABLES, Address, Socket, check_peer, read_sockets
from hosts.errors import Unreachable
from hosts.login import Target, connection_broken, unreachable_error

REFUSED_TEXT: Final = "Connection refused"
"""Text of OpenSSH's server for a closed port (strerror of ECONNREFUSED)."""
TOKEN_FILE: Final = "admin.token"  # noqa: S105 - a file's name
TOKEN_MAX: Final = 4096
"""Max bytes read of a token file."""
PIECE: Final = 16 * 1024
READ_S: Final = 15.0
"""Max seconds for opening SFTP and reading the file."""


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


class NoToken(Exception):
    """The token could not be read; the text has the reason and the remedy."""


async def read_token(
    connection: asyncssh.SSHClientConnection,
    target: Target,
    data: Path,
    server: Address | None = None,
) -> str:
    """Read the token in the remote folder `data`; `~` and relative paths start at the home folder.

    `server`: the address there that gets it, whose listener must be root or the file's owner.
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
            owner = (await file.stat()).uid
            why = "" if server is None else await _why_not(sftp, server, {ROOT, owner})
    except asyncssh.SFTPNoSuchFile as error:
        raise NoToken(f"{target} has no file {path}: set the folder with --data") from error
    except asyncssh.SFTPPermissionDenied as error:
        raise NoToken(
            f"{path} of {target} is not readable by this user: log in as the server's, or use --key"
        ) from error
    except (asyncssh.Error, OSError, TimeoutError) as error:
        raise NoToken(f"{target} sent no {path} by SFTP ({_reason(error)}): use --key") from error
    if why:
        raise NoToken(f"the admin token of {target} was not sent to its server: {why}; use --key")
    try:
        token = content.decode("ascii").strip()
    except ValueError as error:
        raise NoToken(f"{path} of {target} is not a token: expected ASCII text") from error
    if not token or len(content) > TOKEN_MAX:
        got = "an empty file" if not token else f"more than {TOKEN_MAX} bytes"
        raise NoToken(f"{path} of {target} is not a token: expected one line, got {got}")
    return token


async def _why_not(
    sftp: asyncssh.SFTPClient, server: Address, allowed: Collection[int | None]
) -> str:
    """Return why a server there must not get the token, "" if it may. Raises asyncssh.Error."""
    found: list[Socket] = []
    for table in TABLES:
        if not await sftp.exists(str(table)):
            continue
        async with sftp.open(str(table), "rb") as file:
            # Piece by piece: such a file has no size. Who listens comes first.
            rest = b""
            while piece := cast(bytes, await file.read(PIECE)):
                *lines, rest = (rest + piece).split(b"\n")
                sockets = list(read_sockets(line.decode("ascii", "replace") for line in lines))
                found += (one for one in sockets if one.is_listening)
                if not all(one.is_listening for one in sockets):
                    break
    return check_peer(found, server, None, [uid for uid in allowed if uid is not None])


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
