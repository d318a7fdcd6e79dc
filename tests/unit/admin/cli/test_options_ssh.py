from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import Result

from admin.cli.options import ServerAddress, ssh_client
from admin.client.client import ApiError
from admin.client.ssh import Login, parse_target
from tests.support.admin_api import AdminApi, Canned
from tests.support.sshd import Sshd, sshd

LS = "/admin/v1/functions"
NO_KEY = Canned({"title": "A key is needed", "code": "no_key"}, 401)


@pytest.mark.parametrize(
    "words",
    [
        ("--ssh", "-oProxyCommand=x", "ls"),
        ("ls", "--ssh", "a b"),
        ("--ssh", "gpu1", "--identity", "/nonexistent", "ls"),
        ("--ssh", "gpu1", "ls", "--known-hosts", "/nonexistent"),
        ("--ssh", "gpu1", "serve"),
        ("--ssh", "gpu1", "image", "build"),
    ],
)
def test_what_cannot_be_is_wrong_usage(
    api: AdminApi, fnctl: Callable[..., Result], words: tuple[str, ...]
) -> None:
    """An address or file that cannot be, and a server to be started elsewhere, are refused."""
    assert fnctl(*words).exit_code == 2
    assert api.requests == []


@pytest.mark.slow
def test_the_option_stands_before_or_behind_the_verb(
    api: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """Both reach the other machine, and what stands behind the verb is stronger."""
    api.on("GET", LS, Canned({"items": []}))
    with sshd(tmp_path / "ssh") as far:
        files = ("--identity", str(far.identity), "--known-hosts", str(far.known_hosts))

        results = [
            fnctl("--ssh", far.target, *files, "ls"),
            fnctl("ls", "--ssh", far.target, *files),
            fnctl("--ssh", "nowhere.invalid", *files, "ls", "--ssh", far.target),
            fnctl(*files, "key", "ls", "--ssh", far.target),
        ]

    assert [each.exit_code for each in results[:3]] == [0, 0, 0]
    assert "SSH" not in results[3].stderr
    assert len(api.requests) == 4
    assert far.log.read_text().count("Accepted publickey") == 4


@pytest.mark.slow
def test_a_machine_that_cannot_be_reached_is_exit_code_3(
    api: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """It is told like a server that gives no answer, with what mends it."""
    with sshd(tmp_path / "ssh") as far:
        far.know(far.make_key("other"))
        files = ("--identity", str(far.identity), "--known-hosts", str(far.known_hosts))

        result = fnctl("ls", "--ssh", far.target, *files)

    assert result.exit_code == 3
    assert "CHANGED" in result.stderr
    assert "next: ask who runs it" in result.stderr
    assert api.requests == []


def way(far: Sshd) -> Login:
    return Login(parse_target(far.target), far.identity, far.known_hosts)


@pytest.mark.slow
def test_the_token_is_read_there(api: AdminApi, tmp_path: Path) -> None:
    """Without a key the token of the far data folder is sent; with one, that."""
    api.on("GET", LS, Canned({"items": []}))
    (tmp_path / "admin.token").write_text("t0ken")
    place = ServerAddress(api.url, None, tmp_path)
    with sshd(tmp_path / "ssh") as far:
        for each in (place, replace(place, key="mine")):
            with ssh_client(way(far), each) as client:
                client.functions()

    sent = [request.headers["Authorization"] for request in api.requests]
    assert sent == ["Bearer t0ken", "Bearer mine"]


@pytest.mark.slow
def test_a_missing_token_is_told_where_one_is_needed(api: AdminApi, tmp_path: Path) -> None:
    """What needs no key works without; a refusal for want of one says why there was none."""
    api.on("GET", "/readyz", Canned({"status": "ok"}))
    api.on("GET", LS, NO_KEY)

    def ask(far: Sshd, url: str) -> str:
        with ssh_client(way(far), ServerAddress(url, None, tmp_path / "none")) as client:
            if url == api.url:
                assert client.ready() == {"status": "ok"}
            client.functions()
        return ""

    notes = []
    with sshd(tmp_path / "ssh") as far:
        for url in (api.url, api.url.replace("127.0.0.1", "0.0.0.0")):
            with pytest.raises(ApiError) as error:
                ask(far, url)
            notes.append(error.value.__notes__[0])

    assert "has no file" in notes[0]
    assert "give --key or FN_KEY: http://0.0.0.0:" in notes[1]
    assert all("Authorization" not in request.headers for request in api.requests)
