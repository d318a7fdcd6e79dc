"""The client's SSH: errors of channels to a server, and the admin token over SFTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, cast

import asyncssh

from hosts.errors import Unreachable
from hosts.login import Target, connection_broken, unreachable_error

REFUSED_TEXT: Final = "Connection refused"
"""Text of OpenSSH's server for a closed port (strerror of ECONNREFUSED)."""
TOKEN_FILE: Final = "admin.token"  # noqa: S105 - a file's name
TOKEN_MAX: Final = 4096
"""Max bytes read of a token file."""
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
