from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import typer

from admin.cli.options import Session, connected, is_local, local_token, open_client
from admin.client.client import Client


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.8.8.8"])
def test_a_local_server_gets_the_local_token(tmp_path: Path, host: str) -> None:
    """The token in the data folder goes to servers on this machine."""
    (tmp_path / "admin.token").write_text("t0ken\n")

    assert local_token(f"http://{host}:8080", tmp_path) == "t0ken"


@pytest.mark.parametrize(
    "url", ["http://example.org", "http://127.evil.org", "http://10.0.0.1", "nonsense", "http://[x"]
)
def test_no_other_server_gets_the_local_token(tmp_path: Path, url: str) -> None:
    """The token opens everything on its server, so it never leaves the machine."""
    (tmp_path / "admin.token").write_text("t0ken\n")

    assert not is_local(url)
    assert local_token(url, tmp_path) is None


@pytest.mark.parametrize("text", [None, b"", b"\n", b"\xff"])
def test_a_token_that_cannot_be_read_is_none(tmp_path: Path, text: bytes | None) -> None:
    """Without a usable token file, no token is sent."""
    if text is not None:
        (tmp_path / "admin.token").write_bytes(text)

    assert local_token("http://localhost", tmp_path) is None


@pytest.mark.parametrize(("url", "key"), [("nonsense", None), ("http://localhost", "a\nb")])
def test_a_wrong_server_is_wrong_usage(tmp_path: Path, url: str, key: str | None) -> None:
    """An address or key that cannot be is told as wrong usage."""
    with pytest.raises(typer.BadParameter):
        open_client(url, key, tmp_path)


def test_a_verb_has_the_options_of_all_verbs() -> None:
    """A connected verb keeps its own parameters and gains those of the server."""

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
    """With --json nothing but JSON is printed, in plain ASCII."""
    session = Session(Client("http://localhost"), as_json=True)

    session.answer({"a": "ä\x9b"}, lambda: "never")
    session.remark("never")

    captured = capsys.readouterr()
    assert captured.out == '{\n  "a": "\\u00e4\\u009b"\n}\n'
    assert captured.err == ""
