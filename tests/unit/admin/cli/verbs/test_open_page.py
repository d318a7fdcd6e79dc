"""Tests of fnctl open."""

from __future__ import annotations

import json
import stat
import webbrowser
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from tests.support.admin_api import AdminApi, Canned

TICKETS = "/admin/v1/functions/jupyter/tickets"
TICKET = {"ticket": "word", "address": "jupyter.localhost:80/.fngate/enter#word", "expires_s": 60.0}
ADDRESS = "http://jupyter.localhost:80/.fngate/enter#word"


def test_the_browser_gets_a_file_and_not_the_ticket(
    api: AdminApi, fnctl: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user of the machine can read a browser's command line, and a ticket is worth a key."""
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) is None)
    api.on("POST", TICKETS, Canned(TICKET, 201))

    result = fnctl("open", "jupyter", "--path", "/lab")

    path = tmp_path / "data/open.html"
    assert (result.exit_code, opened) == (0, [path.as_uri()])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert f'"{ADDRESS}"' in path.read_text()
    assert json.loads(api.requests[0].body) == {"path": "/lab"}
    assert "opened http://jupyter.localhost:80/lab" in result.stderr
    assert "word" not in result.stdout + result.stderr


@pytest.mark.parametrize("option", ["--print", "--json"])
def test_the_address_is_printed(
    api: AdminApi, fnctl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """For a browser elsewhere; none is opened here."""
    monkeypatch.setattr(webbrowser, "open", lambda _url: pytest.fail("opened a browser"))
    api.on("POST", TICKETS, Canned(TICKET, 201))

    printed = fnctl("open", "jupyter", option).stdout

    if option == "--json":
        assert json.loads(printed) == {"url": ADDRESS, "expires_s": 60.0}
    else:
        assert printed == f"{ADDRESS}\n"


def test_without_a_browser_the_address_is_printed(
    api: AdminApi, fnctl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a word on how long it is valid."""
    monkeypatch.setattr(webbrowser, "open", lambda _url: False)
    api.on("POST", TICKETS, Canned(TICKET, 201))

    result = fnctl("open", "jupyter")

    assert result.stdout == f"{ADDRESS}\n"
    assert "within 60 s" in result.stderr


def test_a_refusal_opens_nothing(
    api: AdminApi, fnctl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's reason is printed."""
    monkeypatch.setattr(webbrowser, "open", lambda _url: pytest.fail("opened a browser"))
    refused = {"title": "x", "code": "wrong_scope", "detail": "this needs the scope invoke"}
    api.on("POST", TICKETS, Canned(refused, 403))

    result = fnctl("open", "jupyter")

    assert result.exit_code != 0
    assert "this needs the scope invoke" in result.stderr
