from __future__ import annotations

import socket
from pathlib import Path

import asyncssh
import pytest

from admin.client.listeners import loopback_address
from admin.client.ssh import TOKEN_MAX, NoToken, channel_failure, read_token, remote_path
from hosts.login import Login, Target, log_in, parse_target
from tests.support.sshd import sshd

TARGET = Target("gpu1", "nn")
PLACE = ("127.0.0.1", 8080)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (asyncssh.ChannelOpenError(1, "prohibited"), "forbids forwarding to 127.0.0.1:8080"),
        (asyncssh.ChannelOpenError(2, "Connection refused"), "nothing listens on 127.0.0.1:8080"),
        (asyncssh.ChannelOpenError(2, "No route to host"), "No route to host"),
        (TimeoutError(), "in time"),
        (OSError("broken"), "broke: broken"),
    ],
)
def test_a_refused_channel_says_why(error: Exception, text: str) -> None:
    """A refused channel has its reason: forbidden, connection refused, unreachable, timeout or
    broken."""
    assert text in str(channel_failure(TARGET, PLACE, error))


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ("~/.fngate", ".fngate/admin.token"),
        ("~", "admin.token"),
        ("state", "state/admin.token"),
        ("/srv/fn", "/srv/fn/admin.token"),
    ],
)
def test_a_folder_begins_at_the_remote_home(data: str, path: str) -> None:
    """`~` is left out of a path, since SFTP starts in the remote home folder."""
    assert remote_path(Path(data)) == path


def test_homes_of_others_are_not_known() -> None:
    """Another user's home folder is refused, since its path is unknown."""
    with pytest.raises(NoToken, match="begins with / or ~/"):
        remote_path(Path("~nn/.fngate"))


async def read(login: Login, data: Path, port: int = 0) -> str:
    there = await log_in(login)
    server = loopback_address("localhost", port) if port else None
    try:
        return await read_token(there.connection, login.target, data, server)
    finally:
        await there.close()


@pytest.mark.slow
async def test_the_token_is_read(login: Login, tmp_path: Path) -> None:
    """The token is the file's only line."""
    (tmp_path / "admin.token").write_text("t0ken\n")

    assert await read(login, tmp_path) == "t0ken"


@pytest.mark.slow
async def test_the_token_is_for_a_server_of_its_owner(login: Login, tmp_path: Path) -> None:
    """The tables of sockets there say who listens; without a listener the token is not used."""
    (tmp_path / "admin.token").write_text("t0ken\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert await read(login, tmp_path, port) == "t0ken"
    with pytest.raises(NoToken, match="nobody of this machine is seen to listen there"):
        await read(login, tmp_path, port)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "has no file"),
        (b"", "an empty file"),
        (b"\xff", "expected ASCII"),
        (b"x" * (TOKEN_MAX + 1), f"more than {TOKEN_MAX} bytes"),
    ],
)
async def test_a_bad_token_file_is_reported(
    login: Login, tmp_path: Path, content: bytes | None, text: str
) -> None:
    """A missing, empty, binary or endless token file is reported, and the latter is not read
    whole."""
    if content is not None:
        (tmp_path / "admin.token").write_bytes(content)

    with pytest.raises(NoToken, match=text):
        await read(login, tmp_path)


@pytest.mark.slow
async def test_a_folder_in_its_place_is_told(login: Login, tmp_path: Path) -> None:
    """A folder in the token's place is reported with SFTP's reason."""
    (tmp_path / "admin.token").mkdir()

    with pytest.raises(NoToken, match="by SFTP"):
        await read(login, tmp_path)


@pytest.mark.slow
async def test_a_server_without_sftp_is_told(tmp_path: Path) -> None:
    """Without SFTP the advice is to give a key."""
    with sshd(tmp_path / "bare", sftp=False) as bare:
        login = Login(parse_target(bare.target), bare.identity, bare.known_hosts)

        with pytest.raises(NoToken, match=r"by SFTP .*: use --key"):
            await read(login, tmp_path)
