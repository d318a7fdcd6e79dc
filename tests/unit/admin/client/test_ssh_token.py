from __future__ import annotations

from pathlib import Path

import pytest

from admin.client.ssh import (
    TOKEN_MAX,
    Login,
    NoToken,
    log_in,
    parse_target,
    read_token,
    remote_path,
)
from tests.support.sshd import sshd


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
    """SFTP begins in the home folder there, so `~` is left out."""
    assert remote_path(Path(data)) == path


def test_homes_of_others_are_not_known() -> None:
    """Nobody here knows where another user's home folder is."""
    with pytest.raises(NoToken, match="begins with / or ~/"):
        remote_path(Path("~nn/.fngate"))


async def read(way: Login, data: Path) -> str:
    there = await log_in(way)
    try:
        return await read_token(there.connection, way.target, data)
    finally:
        await there.close()


@pytest.mark.slow
async def test_the_token_is_read(way: Login, tmp_path: Path) -> None:
    """The file's one line is the token."""
    (tmp_path / "admin.token").write_text("t0ken\n")

    assert await read(way, tmp_path) == "t0ken"


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
async def test_what_is_no_token_is_told(
    way: Login, tmp_path: Path, content: bytes | None, text: str
) -> None:
    """A missing, empty, binary or endless file is told; not all of it is read."""
    if content is not None:
        (tmp_path / "admin.token").write_bytes(content)

    with pytest.raises(NoToken, match=text):
        await read(way, tmp_path)


@pytest.mark.slow
async def test_a_folder_in_its_place_is_told(way: Login, tmp_path: Path) -> None:
    """What SFTP refuses otherwise is told with its reason."""
    (tmp_path / "admin.token").mkdir()

    with pytest.raises(NoToken, match="by SFTP"):
        await read(way, tmp_path)


@pytest.mark.slow
async def test_a_server_without_sftp_is_told(tmp_path: Path) -> None:
    """Where SFTP is switched off, a key is what remains."""
    with sshd(tmp_path / "bare", sftp=False) as bare:
        way = Login(parse_target(bare.target), bare.identity, bare.known_hosts)

        with pytest.raises(NoToken, match=r"by SFTP .*: use --key"):
            await read(way, tmp_path)
