"""The admin token of a gateway on another machine, read over SFTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, cast

import asyncssh

from admin.remote.target import Target

TOKEN_FILE: Final = "admin.token"  # noqa: S105 - a file's name
TOKEN_MAX: Final = 4096
"""Bytes read of it."""
READ_S: Final = 15.0
"""Seconds for opening SFTP and reading the file."""


class NoToken(Exception):
    """The token could not be read; the text says why and what else there is."""


async def read_token(connection: asyncssh.SSHClientConnection, target: Target, data: Path) -> str:
    """The token in the data folder `data` there; `~` and relative paths begin at the home folder.

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
        raise NoToken(f"{target} has no file {path}: name the folder with --data") from error
    except asyncssh.SFTPPermissionDenied as error:
        raise NoToken(
            f"{path} of {target} cannot be read by this user: log in as the server's, or --key"
        ) from error
    except (asyncssh.Error, OSError, TimeoutError) as error:
        raise NoToken(f"{target} gives no {path} by SFTP ({_said(error)}): use --key") from error
    try:
        token = content.decode("ascii").strip()
    except ValueError as error:
        raise NoToken(f"{path} of {target} is no token: expected ASCII text") from error
    if not token or len(content) > TOKEN_MAX:
        got = "an empty file" if not token else f"more than {TOKEN_MAX} bytes"
        raise NoToken(f"{path} of {target} is no token: expected one line, got {got}")
    return token


def remote_path(data: Path) -> str:
    """The token's path for SFTP, which begins at the home folder. Raises NoToken for `~user`."""
    parts = data.parts
    if parts[:1] == ("~",):
        return str(Path(*parts[1:]) / TOKEN_FILE)
    if parts and parts[0].startswith("~"):
        raise NoToken(f"--data: expected a path that begins with / or ~/, got {data}")
    return str(data / TOKEN_FILE)


def _said(error: Exception) -> str:
    return str(error) or ("no answer in time" if isinstance(error, TimeoutError) else repr(error))
