from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import Result

from admin.cli.options import (
    ServerAddress,
    Session,
    connected,
    is_local,
    local_token,
    open_client,
    ssh_client,
)
from admin.client.client import ApiError, Client
from admin.client.routes import FUNCTIONS
from hosts.login import Login, parse_target
from tests.support.admin_api import AdminApi, Canned
from tests.support.sshd import Sshd, sshd


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.8.8.8"])
def test_a_local_server_gets_the_local_token(tmp_path: Path, host: str) -> None:
    """The token in the data folder is sent to servers on this machine."""
    (tmp_path / "admin.token").write_text("t0ken\n")

    assert local_token(f"http://{host}:8080", tmp_path) == ("t0ken", os.getuid())


@pytest.mark.parametrize(
    "url", ["http://example.org", "http://127.evil.org", "http://10.0.0.1", "nonsense", "http://[x"]
)
def test_no_other_server_gets_the_local_token(tmp_path: Path, url: str) -> None:
    """The token of the data folder is never sent to another machine."""
    (tmp_path / "admin.token").write_text("t0ken\n")

    assert not is_local(url)
    assert local_token(url, tmp_path) is None


@pytest.mark.parametrize("text", [None, b"", b"\n", b"\xff"])
def test_a_token_that_cannot_be_read_is_none(tmp_path: Path, text: bytes | None) -> None:
    """An unusable token file means that no token is sent."""
    if text is not None:
        (tmp_path / "admin.token").write_bytes(text)

    assert local_token("http://localhost", tmp_path) is None


@pytest.mark.parametrize(("url", "key"), [("nonsense", None), ("http://localhost", "a\nb")])
def test_a_wrong_server_is_wrong_usage(tmp_path: Path, url: str, key: str | None) -> None:
    """A bad address or key is wrong usage."""
    with pytest.raises(typer.BadParameter):
        open_client(url, key, tmp_path)


def test_a_verb_has_the_options_of_all_verbs() -> None:
    """A connected verb keeps its own parameters and gains those of the connection."""

    @connected
    def verb(session: Session, name: str) -> None:
        """Does it."""

    parameters = list(inspect.signature(verb).parameters)
    assert parameters[:5] == ["name", "context", "url", "key", "data"]
    assert parameters[5:] == ["ssh", "identity", "known_hosts", "as_json"]
    assert (verb.__name__, verb.__doc__) == ("verb", "Does it.")


def test_results_and_remarks_are_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """Results go to stdout, remarks to stderr, both without control characters."""
    session = Session(Client("http://localhost"), as_json=False)

    session.answer({}, lambda: "it\x1b[2J")
    session.next("fnctl ls", "fnctl show x")

    captured = capsys.readouterr()
    assert captured.out == "it�[2J\n"
    assert captured.err == "next: fnctl ls  or  fnctl show x\n"


def test_json_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json stdout has only JSON, in plain ASCII."""
    session = Session(Client("http://localhost"), as_json=True)

    session.answer({"a": "ä\x9b"}, lambda: "never")
    session.remark("never")

    captured = capsys.readouterr()
    assert captured.out == '{\n  "a": "\\u00e4\\u009b"\n}\n'
    assert captured.err == ""


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
def test_impossible_ssh_options_are_wrong_usage(
    api: AdminApi, fnctl: Callable[..., Result], words: tuple[str, ...]
) -> None:
    """A bad address or file, and `serve` or `image` over SSH, are wrong usage."""
    assert fnctl(*words).exit_code == 2
    assert api.requests == []


@pytest.mark.slow
def test_the_option_stands_before_or_behind_the_verb(
    api: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """--ssh may stand before or after the verb; after the verb it takes precedence."""
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
    """A machine that SSH cannot reach is exit code 3, with advice."""
    with sshd(tmp_path / "ssh") as far:
        far.know(far.make_key("other"))
        files = ("--identity", str(far.identity), "--known-hosts", str(far.known_hosts))

        result = fnctl("ls", "--ssh", far.target, *files)

    assert result.exit_code == 3
    assert "CHANGED" in result.stderr
    assert "next: ask its operator" in result.stderr
    assert api.requests == []


def way(far: Sshd) -> Login:
    return Login(parse_target(far.target), far.identity, far.known_hosts)


@pytest.mark.slow
def test_the_token_is_read_there(api: AdminApi, tmp_path: Path) -> None:
    """Without a key the token of the remote data folder is sent, otherwise the key."""
    api.on("GET", LS, Canned({"items": []}))
    (tmp_path / "admin.token").write_text("t0ken")
    place = ServerAddress(api.url, None, tmp_path)
    with sshd(tmp_path / "ssh") as far:
        for each in (place, replace(place, key="mine")):
            with ssh_client(way(far), each) as client:
                client.items(FUNCTIONS)

    sent = [request.headers["Authorization"] for request in api.requests]
    assert sent == ["Bearer t0ken", "Bearer mine"]


@pytest.mark.slow
def test_a_missing_token_is_told_where_one_is_needed(api: AdminApi, tmp_path: Path) -> None:
    """Without a remote token, commands that need none work; a 401 says why there was no token."""
    api.on("GET", "/readyz", Canned({"status": "ok"}))
    api.on("GET", LS, NO_KEY)

    def ask(far: Sshd, url: str) -> str:
        with ssh_client(way(far), ServerAddress(url, None, tmp_path / "none")) as client:
            if url == api.url:
                assert client.ready() == {"status": "ok"}
            client.items(FUNCTIONS)
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
